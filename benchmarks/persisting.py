"""Does writing prefixes to disk hold up the streams that run?

    python benchmarks/persisting.py [--model DIR] [--streams 4] [--gigabytes 1] [--seconds 6]

One engine in this process. Prompts are read until their states fill so many bytes, none of which is written
yet; then streams run, first undisturbed, then while all of that is written. Told are the tokens a second of
all streams in both, their ratio, and how fast was written. Without a model: a random one whose states are
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

        async def rate(done: Callable[[], bool]) -> tuple[float, float]:
            begun, tokens = time.perf_counter(), engine.gauges.decode.tokens
            while not done():  # noqa: ASYNC110 - gauges are asked from outside
                await trio.sleep(0.02)
            seconds = time.perf_counter() - begun
            return (engine.gauges.decode.tokens - tokens) / seconds, seconds

        async with trio.open_nursery() as nursery:
            for i in range(options.streams):
                nursery.start_soon(stream, 11 + i)
            await trio.sleep(2)
            end = time.perf_counter() + options.seconds
            before, _ = await rate(lambda: time.perf_counter() > end)
            gate.open()
            during, seconds = await rate(lambda: engine.gauges.persister.written >= number)
            end = time.perf_counter() + options.seconds
            after, _ = await rate(lambda: time.perf_counter() > end)
            nursery.cancel_scope.cancel()
        written = engine.gauges.persister.bytes
        quiet = (before + after) / 2
        print(f"  undisturbed, before and after: {before:7.1f} {after:7.1f} tokens/s")
        print(f"  while {written / 1e9:.2f} GB are written: {during:8.1f} tokens/s")
        print(f"  ratio {during / quiet:.3f}")
        print(f"  written in {seconds:.1f} s: {written / 1e6 / seconds:.0f} MB/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: a random model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=6.0, help="undisturbed, before and after")
    options = parser.parse_args()
    logs.configure("WARNING")
    sys.setswitchinterval(0.0005)  # as `motet serve` has it
    with tempfile.TemporaryDirectory() as place:
        model = options.model
        if model is None:
            model = f"{place}/model"
            random_models.make(_WIDE, Path(model), mx.float32)
        trio.run(measure, model, f"{place}/cache", options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
