"""Prompts that arrive together: read as one cohort, or one after another?

    python benchmarks/cohort.py [--model DIR | --random-llama 1b|8b] [--prompts 8] [--length 128] [--rounds 7]

One engine in this process. In a round the same number of fresh prompts is sent twice, first all at the same
moment, then each when the one before has its first token (every other round the other way round). Told are
the medians of

    last    seconds until the last of them has its first token
    mean    mean seconds to the first token, counted from the moment when the first was sent

and the medians of the rounds' ratios, together / one after another. On a CPU preload OpenBLAS.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio
from servers import default_model, random_model

import motet
from motet import logs
from motet.tuning import tune_process

_IDS = range(3, 30_000)


@attrs.frozen
class Firsts:
    """When each prompt had its first token, in seconds."""

    at: list[float]

    @property
    def last(self) -> float:
        return max(self.at)

    @property
    def mean(self) -> float:
        return statistics.mean(self.at)


async def together(engine: motet.Engine, prompts: list[list[int]]) -> Firsts:
    """All at the same moment."""
    begun, at = time.perf_counter(), list[float]()
    requests = [motet.Request(prompt, max_tokens=1) for prompt in prompts]
    async with engine.open_rows(requests) as stream:
        async for event in stream:
            if isinstance(event, motet.Finished):
                at.append(time.perf_counter() - begun)
    return Firsts(at)


async def one_by_one(engine: motet.Engine, prompts: list[list[int]]) -> Firsts:
    """Each when the one before has its first token."""
    begun, at = time.perf_counter(), list[float]()
    for prompt in prompts:
        async with engine.generate(prompt, max_tokens=1) as stream:
            async for _ in stream:
                pass
        at.append(time.perf_counter() - begun)
    return Firsts(at)


async def run(model: str, options: argparse.Namespace) -> None:
    """Measure and report."""
    draw = random.Random(options.seed)
    ways = [together, one_by_one]
    told: dict[str, list[Firsts]] = {way.__name__: [] for way in ways}
    async with motet.open_engine(model, prompt_cache_bytes=0, batch=max(8, options.prompts)) as engine:
        for number in range(-2, options.rounds):  # two to warm up
            for way in ways if number % 2 else reversed(ways):
                prompts = [draw.choices(_IDS, k=options.length) for _ in range(options.prompts)]
                firsts = await way(engine, prompts)
                if number >= 0:
                    told[way.__name__].append(firsts)
    print(f"{options.prompts} prompts of {options.length} tokens, {options.rounds} rounds")
    for name, rounds in told.items():
        last, mean = (statistics.median(getattr(r, of) for r in rounds) for of in ("last", "mean"))
        print(f"  {name:11} last {1000 * last:9.1f} ms   mean {1000 * mean:9.1f} ms")
    for of in ("last", "mean"):
        pairs = zip(told["together"], told["one_by_one"], strict=True)
        ratio = statistics.median(getattr(a, of) / getattr(b, of) for a, b in pairs)
        print(f"  together / one by one, {of}: {ratio:.3f}")


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
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of each")
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
