"""An engine that keeps prefixes in a directory until it is killed.

python killed_engine.py DIRECTORY SEED
"""

import random
import sys

import trio

import families
import motet
from motet import logs
from motet.actors.system import Settings, open_system

CEILING = 3_000_000


def prompt(draw: random.Random) -> list[int]:
    """One of a few stems and a tail of its own."""
    stem = families.prompts((300 + 10 * (number := draw.randrange(12)),), seed=number)[0]
    return [*stem, *families.prompts((draw.randint(2, 300),), seed=draw.randrange(1000))[0]]


async def main(directory: str, seed: int) -> None:
    """Three rows at a time without end, and a line for each that has ended."""
    draw = random.Random(seed)
    options = {"prompt_cache_disk_bytes": CEILING, "prompt_cache_bytes": 4 << 20}
    settings = Settings(prompt_cache_dir=directory, **options)
    async with open_system(families.loader(), settings) as engine:
        while True:
            requests = [motet.Request(prompt(draw), max_tokens=4) for _ in range(3)]
            async with engine.open_rows(requests) as stream:
                async for _ in stream:
                    pass
            print("ended", flush=True)


if __name__ == "__main__":
    logs.configure("ERROR")  # to standard error
    trio.run(main, sys.argv[1], int(sys.argv[2]))
