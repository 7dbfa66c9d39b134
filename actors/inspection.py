"""The prompt cache's directory for those who look at it from outside, beside servers that use it."""

import pathlib
import time

import attrs

from motet.actors.archive import ENTRY, Reader, read_header
from motet.actors.disk import LocalDisk
from motet.actors.entry_file import BadFile
from motet.channels.archive import Filed, Open, Piece, ReadFailed, ReadOn


@attrs.frozen
class Inspected:
    """A file with an entry's name."""

    name: str
    nbytes: int
    used: float
    """Seconds since it was written or served somebody."""
    filed: Filed | None
    """What its header says; None if it is damaged."""
    fault: str = ""

    def line(self) -> str:
        """For people."""
        told = self.fault
        if self.filed is not None:
            namespace = self.filed.namespace
            parts = [f"model {namespace.model[:12]}", namespace.scheme, *namespace.adapters]
            told = told or f"{len(self.filed.tokens)} tokens, {', '.join((*parts, *namespace.companions))}"
        return f"{self.name}  {self.nbytes:>13,} bytes  used {self.used:,.0f} s ago  {told}"


def entries(directory: pathlib.Path) -> list[Inspected]:
    """All entries, the latest used first.

    Raises:
        OSError: the directory cannot be read.
    """
    disk = LocalDisk(directory, make=False)
    found = []
    for file in sorted(disk.files(), key=lambda file: -file.used_at):
        if ENTRY.fullmatch(file.name):
            filed, fault = None, ""
            try:
                filed = read_header(disk, file.name).filed
            except (BadFile, OSError) as error:
                fault = str(error)
            used = time.time() - file.used_at / 1e9
            found.append(Inspected(file.name, file.allocated, used, filed, fault))
    return found


def verify(directory: pathlib.Path) -> list[Inspected]:
    """All entries, every byte read; those that are damaged have a fault.

    Raises:
        OSError: the directory cannot be read.
    """
    disk = LocalDisk(directory, make=False)
    return [
        one if one.filed is None else attrs.evolve(one, fault=_fault(disk, one.filed))
        for one in entries(directory)
    ]


def _fault(disk: LocalDisk, file: Filed) -> str:
    reader = Reader(disk, touch=False)
    result = reader.do(Open(0, file))
    while isinstance(result, Piece):
        if result.last:
            return ""
        result = reader.do(ReadOn(0))
    assert isinstance(result, ReadFailed)
    return result.error


def remove(directory: pathlib.Path, names: list[str] | None) -> list[str]:
    """Remove entries, all of them if no names are given; the names of those that were there.

    Raises:
        OSError: the directory cannot be changed.
    """
    disk = LocalDisk(directory, make=False)
    there = [one.name for one in entries(directory) if names is None or one.name in names]
    with disk.alone():
        for name in there:
            disk.remove(name)
        disk.sync()
    return there
