"""An engine in a process of its own, decoding what it is told to; started by overhead.py.

    python benchmarks/workers.py bare|motet MODEL_DIRECTORY ROWS

A job is a line on standard input, {"prompts": [[id, ...], ...], "max_tokens": n}. The answer is a line
on standard output, {"begun": t, "rows": [[[t, tokens so far], ...], ...]}.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import trio

now = time.perf_counter

Marks = list[tuple[float, int]]
"""Of a row: a time, and how many tokens it had by then."""


class Pipe:
    """Jobs in, answers out. What libraries print goes to standard error instead."""

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def job(self) -> dict[str, Any] | None:
        """The next job, None after the last."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def jobs(self) -> Iterator[dict[str, Any]]:
        """The jobs as they come."""
        while (job := self.job()) is not None:
            yield job

    def answer(self, **answer: Any) -> None:
        """Answer a job, or say that the engine is ready."""
        print(json.dumps(answer), file=self._answers, flush=True)


def bare(pipe: Pipe, model: str) -> None:
    """mlx_lm's BatchGenerator: no text, no events, no other thread."""
    import mlx_lm

    module, tokenizer = mlx_lm.load(model)[:2]
    ends = [[token] for token in tokenizer.eos_token_ids]
    pipe.answer(ready=True)
    for job in pipe.jobs():
        begun, rows = _generate(module, ends, **job)
        pipe.answer(begun=begun, rows=rows)


def _generate(
    module: Any, ends: list[list[int]], prompts: list[list[int]], max_tokens: int
) -> tuple[float, list[Marks]]:
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(module, stop_tokens=ends, prefill_batch_size=8, completion_batch_size=32)
    begun = now()
    rows: dict[int, Marks] = {uid: [] for uid in generator.insert(prompts, [max_tokens] * len(prompts))}
    while responses := generator.next_generated():
        at = now()
        for response in responses:
            marks = rows[response.uid]
            marks.append((at, len(marks) + 1))
    generator.close()
    return begun, list(rows.values())


async def motet_engine(pipe: Pipe, model: str, batch: int) -> None:
    """motet's engine: every event of every row is read, as the HTTP front reads them."""
    import motet

    async with motet.open_engine(model, batch=batch, prompt_cache_bytes=0) as engine:
        pipe.answer(ready=True)
        while (job := await trio.to_thread.run_sync(pipe.job)) is not None:
            begun, rows = await _run_rows(engine, **job)
            pipe.answer(begun=begun, rows=rows)


async def _run_rows(
    engine: Any, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[float, list[Marks]]:
    rows: list[Marks] = [[] for _ in prompts]
    begun = now()
    async with trio.open_nursery() as nursery:
        for prompt, marks in zip(prompts, rows, strict=True):
            nursery.start_soon(_run_row, engine, prompt, max_tokens, marks)
    return begun, rows


async def _run_row(engine: Any, prompt: Sequence[int], max_tokens: int, marks: Marks) -> None:
    import motet

    async with engine.generate(prompt, max_tokens=max_tokens) as stream:
        async for event in stream:
            match event:
                case motet.Text():
                    marks.append((now(), event.completion_tokens))
                case motet.Finished():
                    marks.append((now(), event.usage.completion_tokens))
                case motet.Failed():
                    raise RuntimeError(event.message)


def main() -> None:
    kind, model, rows = sys.argv[1:]
    pipe = Pipe()
    if kind == "bare":
        bare(pipe, model)
        sys.stderr.flush()
        os._exit(0)  # MLX's threads can crash a process that ends without clearing its streams
    from motet import logs
    from motet.tuning import tune_process

    logs.configure()
    tune_process()
    trio.run(motet_engine, pipe, model, int(rows))


if __name__ == "__main__":
    main()
