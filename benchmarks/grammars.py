"""What rows held to grammars cost the plain rows beside them.

    python benchmarks/grammars.py [--model DIR | --random-llama 1b|8b] [--tokens 96] [--rounds 7]

One engine in this process. In a round eight rows run together twice: once all of them plain, once with four
held to four JSON schemas that do not end (every other round the other way round). Told are the medians
of the rate of the first four, which are plain both times, from the moment when all eight have their first
token, and the median of the rounds' ratios. Also what masks take to fill, and how many steps a schema's row
needs when it is alone. On a CPU preload OpenBLAS.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
from servers import default_model, random_model

import motet
from motet import grammar, logs
from motet.engine.constraints import constraint
from motet.tuning import tune_process

_IDS = range(3, 30_000)
_MANY = 10_000  # items that nobody reaches


def _list(items: dict[str, Any]) -> str:
    return grammar.json_schema({"type": "array", "items": items, "minItems": _MANY})


def _record(**properties: Any) -> dict[str, Any]:
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


_NAME = {"type": "string", "maxLength": 20}
SCHEMAS = [
    _list(
        _record(name=_NAME, age={"type": "integer", "minimum": 0, "maximum": 120}, active={"type": "boolean"})
    ),
    _list(_record(status={"enum": ["in_progress", "completed", "cancelled"]}, note=_NAME)),
    _list({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    _list({"anyOf": [{"type": "number"}, _NAME, _record(x={"type": "integer"}, y={"type": "integer"})]}),
]


class Fills:
    """Times every mask that is filled."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        fill = constraint._fill

        def timed(matcher: Any) -> Any:
            began = time.perf_counter()
            filled = fill(matcher)
            self.seconds.append(time.perf_counter() - began)
            return filled

        constraint._fill = timed


async def rate(engine: motet.Engine, requests: list[motet.Request]) -> float:
    """Tokens a second of each of the first four rows, together."""
    first: dict[int, float] = {}
    ended: dict[int, float] = {}
    made: dict[int, int] = {}
    async with engine.open_rows(requests) as stream:
        async for event in stream:
            now = time.perf_counter()
            first.setdefault(event.index, now)
            if isinstance(event, motet.Finished):
                ended[event.index], made[event.index] = now, event.usage.completion_tokens
                if len(ended.keys() & range(4)) == 4:
                    break
    began = max(first.values())
    share = [(ended[i] - began) / (ended[i] - first[i]) for i in range(4)]
    return sum(made[i] * share[i] / (ended[i] - began) for i in range(4))


async def run(model: str, options: argparse.Namespace) -> None:
    """Measure and report."""
    draw = random.Random(options.seed)
    fills = Fills()
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with motet.open_engine(model, prompt_cache_bytes=0) as engine:
        ends = dict.fromkeys(engine.tokenizer.eos_token_ids, -100.0)

        def rows(held: bool) -> list[motet.Request]:
            return [
                motet.Request(
                    draw.choices(_IDS, k=64),
                    max_tokens=options.tokens if i < 4 else 2 * options.tokens,
                    temperature=0.8,
                    seed=i,
                    logit_bias=ends,
                    grammar=SCHEMAS[i - 4] if held and i >= 4 else None,
                )
                for i in range(8)
            ]

        for number in range(-1, options.rounds):  # one to warm up
            for held in (False, True) if number % 2 else (True, False):
                found = await rate(engine, rows(held))
                if number >= 0:
                    rates[held].append(found)
        lone = [await alone(engine, text, options) for text in SCHEMAS]
    print(
        f"{options.tokens} tokens, {options.rounds} rounds; the rate of four plain rows in a batch of eight"
    )
    print(f"  beside plain rows    {statistics.median(rates[False]):8.1f} tokens/s")
    print(f"  beside four schemas  {statistics.median(rates[True]):8.1f} tokens/s")
    ratios = [held / plain for plain, held in zip(rates[False], rates[True], strict=True)]
    print(
        f"  ratio                {statistics.median(ratios):8.3f}   ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    seconds = sorted(fills.seconds)
    print(
        f"  {len(seconds)} masks: median {1e6 * statistics.median(seconds):.0f} us, "
        f"mean {1e6 * statistics.mean(seconds):.0f} us, most {1e3 * seconds[-1]:.1f} ms"
    )
    for tokens, steps, took in lone:
        print(f"  alone: {tokens} tokens in {steps} steps, {tokens / took:.1f} tokens/s")


async def alone(engine: motet.Engine, text: str, options: argparse.Namespace) -> tuple[int, int, float]:
    """A schema's row with nobody beside it: its tokens, the steps that they took, the seconds."""
    steps, began = engine.statistics()["device"]["steps"], time.perf_counter()
    tokens = 0
    async with engine.generate(
        "JSON:", grammar=text, max_tokens=options.tokens, temperature=0.8, seed=1
    ) as stream:
        async for event in stream:
            if isinstance(event, motet.Finished):
                tokens = event.usage.completion_tokens
    return tokens, engine.statistics()["device"]["steps"] - steps, time.perf_counter() - began


@contextmanager
def _model(options: argparse.Namespace) -> Iterator[str]:
    if options.random_llama is None:
        yield options.model or default_model()
        return
    with random_model(options.random_llama) as folder:
        yield folder


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--random-llama", choices=["1b", "8b"], help="random weights in bfloat16")
    parser.add_argument("--tokens", type=int, default=96, help="of each plain row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", default="0", help="what the prompts follow from")
    options = parser.parse_args()
    logs.configure("WARNING")
    tune_process()
    with _model(options) as model:
        trio.run(run, model, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
