"""Does writing prefixes to disk hold up the streams that run?

    python benchmarks/persisting.py [--model DIR] [--streams 4] [--gigabytes 1] [--tokens 3000]

One engine in this process. Prompts are read until their states fill so many bytes, none of which is written
yet. Then the same streams run three times: undisturbed, while all of that is written, and undisturbed. Told
is how long the tokens that were made while it was written took, over how long the same tokens took in the
undisturbed runs (a stream slows down as it grows). Without a model: a random one whose states are
large beside its weights. On a CPU preload OpenBLAS.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import random_models
import trio

import motet
from motet import logs
from motet.actors.writing import Writing
from motet.channels.persister import Persist
from motet.tuning import tune_process

_WIDE: dict[str, Any] = {
    **random_models.BOTH,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "torch_dtype": "float32",
}
_PROMPT = 1024


class Gate:
    """Keeps the persister from beginning to write until it is opened."""

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] | None = []
        begin = Writing.persist

        def persist(writing: Writing, message: Persist) -> None:
            if self._held is None:
                begin(writing, message)
            else:
                self._held.append(lambda: begin(writing, message))

        Writing.persist = persist  # type: ignore[method-assign]

    def open(self) -> None:
        held, self._held = self._held, None
        for go in held or []:
            go()


async def measure(model: str, directory: str, options: argparse.Namespace) -> None:
    """Measure and report."""
    gate = Gate()
    wanted = int(options.gigabytes * 1e9)
    settings = {
        "prompt_cache_dir": directory,
        "prompt_cache_bytes": 4 * wanted,
        "prompt_cache_disk_bytes": 4 * wanted,
    }
    async with motet.open_engine(model, **settings) as engine:
        cache = engine.gauges.store
        number = 0
        while cache.bytes < wanted:
            number += 1
            prompt = [5 + (number * 7919 + i * 31) % 20000 for i in range(_PROMPT)]
            async with engine.generate(prompt, max_tokens=1) as stream:
                async for _ in stream:
                    pass
        print(f"{cache.entries} prefixes, {cache.bytes / 1e9:.2f} GB; {options.streams} streams")

        async def stream(seed: int) -> None:
            async with engine.generate([seed] * 8, max_tokens=4000, temperature=1, seed=seed) as events:
                async for _ in events:
                    pass

        async def run(wanted: int, begin: Callable[[], None] | None = None) -> Timeline:
            timeline = Timeline(engine)
            async with trio.open_nursery() as nursery:
                for i in range(options.streams):
                    nursery.start_soon(stream, 11 + i)
                await timeline.reach(200)
                if begin is not None:
                    begin()
                    timeline.mark()
                    while engine.gauges.persister.written < number and timeline.tokens < wanted:
                        await timeline.tick()
                    timeline.mark()
                else:
                    await timeline.reach(wanted)
                nursery.cancel_scope.cancel()
            return timeline

        before = await run(options.tokens)
        during = await run(options.tokens, gate.open)
        written = engine.gauges.persister.bytes
        after = await run(options.tokens)
        first, last = during.marks
        seconds = during.seconds(first, last)
        quiet = [one.seconds(first, last) for one in (before, after)]
        print(f"  tokens {first} to {last}, undisturbed: {quiet[0]:6.2f} and {quiet[1]:.2f} s")
        print(f"  while {written / 1e9:.2f} GB are written:     {seconds:6.2f} s")
        print(f"  ratio {sum(quiet) / 2 / seconds:.3f}")
        print(f"  written at {written / 1e6 / seconds:.0f} MB/s")


class Timeline:
    """When the streams had made how many tokens."""

    def __init__(self, engine: motet.Engine) -> None:
        self._gauge = engine.gauges.decode
        self._start = self._gauge.tokens
        self._at: list[tuple[int, float]] = []
        self.marks: list[int] = []

    @property
    def tokens(self) -> int:
        """Made so far."""
        return self._gauge.tokens - self._start

    def mark(self) -> None:
        """Remember how many there are."""
        self._at.append((self.tokens, time.perf_counter()))
        self.marks.append(self.tokens)

    async def tick(self) -> None:
        """Look again a little later: gauges are asked from outside."""
        await trio.sleep(0.01)
        self._at.append((self.tokens, time.perf_counter()))

    async def reach(self, tokens: int) -> None:
        """Until there are so many."""
        while self.tokens < tokens:
            await self.tick()

    def seconds(self, first: int, last: int) -> float:
        """From the first token to the last."""
        return self._time(last) - self._time(first)

    def _time(self, tokens: int) -> float:
        return next(at for made, at in self._at if made >= tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: a random model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=3000, help="of all streams, at most")
    options = parser.parse_args()
    logs.configure("WARNING")
    tune_process()
    with tempfile.TemporaryDirectory() as place:
        model = options.model
        if model is None:
            model = f"{place}/model"
            random_models.make(_WIDE, Path(model), mx.float32)
        trio.run(measure, model, f"{place}/cache", options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
