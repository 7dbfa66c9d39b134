"""A process that writes entries until it is killed: what the crash tests run by ``multiprocessing``."""

import os
import pathlib
import random
from multiprocessing.reduction import DupFd
from typing import Any

from archives import draft, write
from motet.actors.archive import Writer
from motet.actors.disk import LocalDisk


class Passed:
    """A descriptor that goes to a child process, which gets its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.descriptor),)  # type: ignore[no-untyped-call]


def _received(duplicate: Any) -> int:
    return int(duplicate.detach())


def write_until_killed(directory: str, ceiling: int, seed: int, told: Any) -> None:
    """Write entries without end, a line into ``told`` for each when it is there for good."""
    draw = random.Random(seed)
    writer = Writer(LocalDisk(pathlib.Path(directory)), ceiling)
    writer.scan()
    while True:
        tokens = tuple(draw.randrange(1 << 20) for _ in range(draw.randint(1, 60)))
        name = write(writer, draft(tokens, draw.choice((8, 100, 900))), piece=draw.choice((500, 20_000)))
        assert name is not None
        os.write(told, f"{name}\n".encode())
