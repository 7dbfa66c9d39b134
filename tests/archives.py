"""Entries of a prompt cache on disk, made without a model; and a disk that notes what is done to it."""

import pathlib
import random

import attrs

from motet.actors.archive import PIECE, Reader, Writer
from motet.actors.disk import Disk, LocalDisk, LocalFile
from motet.channels.archive import Draft, Filed, Open, Piece, ReadFailed, ReadOn, Scan, Write
from motet.channels.manifest import Manifest, Plane
from motet.channels.namespace import Namespace

NAMESPACE = Namespace("model")


def draft(
    tokens: tuple[int, ...],
    width: int = 16,
    namespace: Namespace = NAMESPACE,
    *,
    replaces: tuple[str, ...] = (),
) -> Draft:
    """An entry of two planes of ``width`` bytes a token, and one without any."""
    planes = (Plane("U8", (len(tokens), width)), Plane("BF16", (0, 3)), Plane("U8", (len(tokens), width)))
    return Draft(namespace, tokens, Manifest(len(tokens), True, 0, "[]", planes), replaces)


def content(of: Draft) -> bytes:
    """Its bytes: told by its tokens and namespace."""
    draw = random.Random(repr((of.tokens, of.namespace)))
    return draw.randbytes(of.manifest.nbytes)


def write(writer: Writer, of: Draft, piece: int = PIECE) -> str | None:
    """Write an entry whole; its name, None if it was refused or the disk failed."""
    data = content(of)
    first: Draft | None = of
    for start in range(0, len(data), piece):
        result = writer.do(Write(0, data[start : start + piece], first))
        first = None
        if getattr(result, "refused", True):
            return None
    return result.name  # type: ignore[union-attr]


def read(disk: Disk, file: Filed, piece: int = PIECE) -> bytes | ReadFailed:
    """An entry's planes."""
    reader = Reader(disk, piece)
    result = reader.do(Open(0, file))
    data = b""
    while isinstance(result, Piece):
        data += result.data
        if result.last:
            return data
        result = reader.do(ReadOn(0))
    return result


def scanned(writer: Writer) -> tuple[Filed, ...]:
    return writer.do(Scan(0)).files  # type: ignore[union-attr]


def du(directory: pathlib.Path) -> int:
    """As ``du -s`` counts, without asking the archive."""
    files = [directory, *directory.iterdir()]
    return sum(file.lstat().st_blocks * 512 for file in files)


# --- a disk that notes what is done -----------------------------------------------------------


@attrs.frozen
class Op:
    """What was done: kind is create, write, sync, rename, remove, sync names or told."""

    kind: str
    name: str = ""
    offset: int = 0
    data: bytes = b""
    to: str = ""


@attrs.define
class NotedFile:
    file: LocalFile
    name: str
    ops: list[Op]

    def write(self, offset: int, data: bytes) -> None:
        self.file.write(offset, data)
        self.ops.append(Op("write", self.name, offset, bytes(data)))

    def sync(self) -> None:
        self.file.sync()
        self.ops.append(Op("sync", self.name))

    def close(self) -> None:
        self.file.close()


class NotingDisk(LocalDisk):
    """A real directory, and what was done to it in order."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        self.ops: list[Op] = []

    def create(self, name: str, size: int) -> NotedFile:  # type: ignore[override]
        file = super().create(name, size)
        self.ops.append(Op("create", name, size))
        return NotedFile(file, name, self.ops)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.ops.append(Op("rename", old, to=new))

    def remove(self, name: str) -> None:
        super().remove(name)
        self.ops.append(Op("remove", name))

    def sync(self) -> None:
        super().sync()
        self.ops.append(Op("sync names"))


@attrs.define(eq=False)
class _Inode:
    """A file as the medium and as the cache see it."""

    durable: bytearray
    pending: list[Op] = attrs.Factory(list)


def after_crash(ops: list[Op], draw: random.Random) -> dict[str, bytes]:
    """What a power cut after these operations may leave: names and bytes.

    What was synced is there. Of the rest, each write is there, is not, or is torn; of the changes of names a
    first part is there, each a file's whole life apart from its bytes.
    """
    now: dict[str, _Inode] = {}
    durable: dict[str, _Inode] = {}
    changes: list[Op] = []
    inodes: dict[int, _Inode] = {}
    for op in ops:
        match op.kind:
            case "create":
                now[op.name] = _Inode(bytearray(op.offset))
                changes.append(op)
                inodes[id(op)] = now[op.name]
            case "write":
                now[op.name].pending.append(op)
            case "sync":
                for write in now[op.name].pending:
                    _apply(now[op.name].durable, write.offset, write.data)
                now[op.name].pending = []
            case "rename":
                now[op.to] = now.pop(op.name)
                changes.append(op)
            case "remove":
                now.pop(op.name, None)
                changes.append(op)
            case "sync names":
                durable, changes = dict(now), []
    for op in changes[: draw.randint(0, len(changes))]:
        if op.kind == "create":
            durable[op.name] = inodes[id(op)]
        elif op.kind == "rename":
            durable[op.to] = durable.pop(op.name)
        else:
            durable.pop(op.name, None)
    return {name: _torn(inode, draw) for name, inode in durable.items()}


def _torn(inode: _Inode, draw: random.Random) -> bytes:
    data = bytearray(inode.durable)
    for write in inode.pending:
        keep = draw.choice((0, len(write.data), draw.randint(0, len(write.data))))
        _apply(data, write.offset, write.data[:keep])
    if inode.pending and draw.random() < 0.3:
        del data[draw.randint(0, len(data)) :]
    return bytes(data)


def _apply(data: bytearray, offset: int, new: bytes) -> None:
    data[offset : offset + len(new)] = new
