"""The directory of entries: what the persister's two threads do. Synchronous; knows nothing of Trio or MLX.

Names are never used twice, so that processes share a directory without knowing of each other. What a power
cut leaves is whole or is not there: a file gets its name when its bytes are flushed, and counts as written
when its name is. The ceiling is over all that the directory holds, whoever made it, and holds before each
write: a file takes its whole room when it is begun.
"""

import hashlib
import os
import re
import secrets
import time

import attrs
import structlog

from motet.actors.disk import BLOCK, Disk, FileInfo, FileInWork
from motet.actors.entry_file import BadFile, Header, checksum, decode, encode, header_length, with_tokens
from motet.channels.archive import (
    Abort,
    Draft,
    Filed,
    Open,
    Piece,
    ReaderJob,
    ReaderResult,
    ReadFailed,
    ReadOn,
    Remove,
    Scan,
    Scanned,
    Write,
    WriteFailed,
    WriterJob,
    WriterResult,
    Written,
)

log = structlog.get_logger()

ENTRY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.safetensors")
"""An entry's name."""
_TEMPORARY = re.compile(ENTRY.pattern + r"\.tmp")
_SLACK = 2 * BLOCK  # the directory itself may grow, and the lock file
PIECE = 4 << 20
"""Bytes that are read at once."""


class Lacking(Exception):
    """There is no room below the ceiling."""


@attrs.define
class _Work:
    """A file in work."""

    draft: Draft
    name: str
    file: FileInWork
    at: int
    gone: list[str]
    sums: list[str]
    plane_left: int = 0
    digest: "hashlib.blake2b" = attrs.Factory(checksum)


class Writer:
    """Scans, writes and removes.

    Args:
        disk: the directory.
        ceiling: bytes that it may take.
    """

    def __init__(self, disk: Disk, ceiling: int) -> None:
        self._disk = disk
        self._ceiling = ceiling
        self._work: _Work | None = None
        self._unsynced = False  # files were removed of which a power cut might bring the names back

    def do(self, job: WriterJob) -> WriterResult:
        """One job. What the disk refuses is told."""
        started = time.thread_time()
        result = self._done(job)
        if isinstance(result, Written):
            return attrs.evolve(result, seconds=time.thread_time() - started)
        return result

    def _done(self, job: WriterJob) -> WriterResult:
        try:
            match job:
                case Scan(number):
                    files, nbytes = self.scan()
                    return Scanned(number, files, nbytes)
                case Write(number, data, draft):
                    return self._write(number, data, draft)
                case Abort(number):
                    self.abort()
                case Remove(number, name):
                    self._remove(name)
            return Written(job.job, nbytes=self.usage())
        except OSError as error:
            self.abort()
            return WriteFailed(job.job, f"{type(error).__name__}: {error}")

    # --- what is there ---

    def usage(self) -> int:
        """Bytes that the directory takes, as du counts, and the room of files that are being written."""
        return self._disk.own_bytes() + sum(file.allocated for file in self._disk.files())

    def scan(self) -> tuple[tuple[Filed, ...], int]:
        """All entries, after removing what is worthless and, until the ceiling holds, the oldest.

        Worthless are files that are damaged or of another format, and those that a dead writer left.
        """
        with self._disk.alone():
            found = []
            for file in self._disk.files():
                if file.regular and _TEMPORARY.fullmatch(file.name):
                    if self._disk.abandoned(file.name):
                        self._disk.remove(file.name)
                elif file.regular and ENTRY.fullmatch(file.name):
                    filed = self._looked_at(file)
                    if filed is not None:
                        found.append(filed)
                elif file.name != ".lock":
                    log.warning("not an entry of the prompt cache", file=file.name)
            gone = set(self._make_room(0))
            self._sync()
        return tuple(filed for filed in found if filed.name not in gone), self.usage()

    def _looked_at(self, file: FileInfo) -> Filed | None:
        try:
            return read_header(self._disk, file.name).filed
        except FileNotFoundError:
            pass
        except BadFile as error:
            log.warning("prompt cache file removed", file=file.name, reason=str(error))
            self._remove(file.name)
        except OSError as error:
            log.warning("prompt cache file not read", file=file.name, reason=str(error))
        return None

    def _make_room(self, needed: int) -> list[str]:
        """Remove the oldest until ``needed`` more bytes keep below the ceiling; their names.

        Raises:
            Lacking: nothing is left that could go.
        """
        files = self._disk.files()
        used = self._disk.own_bytes() + _SLACK + sum(file.allocated for file in files)
        gone: list[str] = []
        entries = sorted(
            (f for f in files if f.regular and ENTRY.fullmatch(f.name)), key=lambda file: file.used_at
        )
        if needed and used - sum(file.allocated for file in entries) + needed > self._ceiling:
            raise Lacking
        for file in entries:
            if used + needed <= self._ceiling:
                break
            self._remove(file.name)
            used -= file.allocated
            gone.append(file.name)
        return gone

    def _remove(self, name: str) -> None:
        self._disk.remove(name)
        self._unsynced = True

    def _sync(self) -> None:
        self._disk.sync()
        self._unsynced = False

    # --- writing ---

    def _write(self, number: int, data: bytes, draft: Draft | None) -> Written:
        if draft is not None:
            try:
                self._begin(draft)
            except Lacking:
                return Written(number, refused=True, nbytes=self.usage())
        work = self._work
        assert work is not None
        self._add(work, data)
        if len(work.sums) < len(work.draft.manifest.planes):
            return Written(number, tuple(work.gone), nbytes=self.usage() if draft is not None else 0)
        return self._finish(number, work)

    def _begin(self, draft: Draft) -> None:
        head = len(encode(draft))
        size = head + draft.manifest.nbytes
        content = hashlib.blake2b(draft.namespace.encoded().encode(), digest_size=16)
        content.update(repr(draft.tokens).encode())
        name = f"{content.hexdigest()}-{secrets.token_hex(8)}.safetensors"
        with self._disk.alone():
            gone = self._make_room(-(-size // BLOCK) * BLOCK)
            if self._unsynced:
                # Else a power cut could bring back what was removed, beside what takes its room.
                self._sync()
            file = self._disk.create(name + ".tmp", size)
        self._work = _Work(draft, name, file, head, gone, [])
        self._next_plane(self._work)

    def _next_plane(self, work: _Work) -> None:
        planes = work.draft.manifest.planes
        while len(work.sums) < len(planes):
            work.digest = checksum()
            work.plane_left = planes[len(work.sums)].nbytes
            if work.plane_left:
                break
            work.sums.append(work.digest.hexdigest())

    def _add(self, work: _Work, data: bytes) -> None:
        work.file.write(work.at, data)
        work.at += len(data)
        view = memoryview(data)
        while view:
            part = view[: work.plane_left]
            work.digest.update(part)
            work.plane_left -= len(part)
            view = view[len(part) :]
            if not work.plane_left:
                work.sums.append(work.digest.hexdigest())
                self._next_plane(work)

    def _finish(self, number: int, work: _Work) -> Written:
        work.file.write(0, encode(work.draft, work.sums))
        work.file.sync()
        self._disk.rename(work.name + ".tmp", work.name)
        self._sync()
        work.file.close()
        self._work = None
        for name in work.draft.replaces:
            self._remove(name)
        gone = (*work.gone, *work.draft.replaces)
        return Written(number, gone, work.name, nbytes=self.usage())

    def abort(self) -> None:
        """Remove the file in work, if one is."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self._remove(work.name + ".tmp")
            self._remove(work.name)
            work.file.close()
        except OSError as error:  # what is left is collected by the next scan
            log.warning("temporary file not removed", file=work.name, error=str(error))


def read_header(disk: Disk, name: str) -> Header:
    """An entry's header and tokens, verified.

    Raises:
        BadFile, OSError: see there.
    """
    descriptor = disk.open(name)
    try:
        return _read_header(descriptor, name)
    finally:
        os.close(descriptor)


def _read_header(descriptor: int, name: str) -> Header:
    size = os.fstat(descriptor).st_size
    length = header_length(_exactly(descriptor, 8, 0), size)
    header = decode(name, _exactly(descriptor, length, 8), size)
    return with_tokens(header, _exactly(descriptor, 4 * header.filed.manifest.length, 8 + length))


def _exactly(descriptor: int, count: int, offset: int) -> bytes:
    parts = []
    while count:
        part = os.pread(descriptor, count, offset)
        if not part:
            raise BadFile("cut off")
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


class Reader:
    """Reads one file at a time, by pieces, comparing checksums.

    Args:
        disk: the directory.
        piece: bytes at once.
        touch: whether to be read is to be used.
    """

    def __init__(self, disk: Disk, piece: int = PIECE, *, touch: bool = True) -> None:
        self._disk = disk
        self._piece = piece
        self._touch = touch
        self._descriptor: int | None = None
        self._header: Header
        self._plane, self._left, self._at = 0, 0, 0  # the plane, what it lacks, where in the file
        self._digest = checksum()

    def do(self, job: ReaderJob) -> ReaderResult:
        """One job. What is wrong with the file is told."""
        try:
            match job:
                case Open(_, file):
                    self.close()
                    self._open(file)
                case ReadOn():
                    pass
            return self._next(job.job)
        except BadFile as error:
            self.close()
            return ReadFailed(job.job, str(error), damaged=True)
        except OSError as error:
            self.close()
            return ReadFailed(job.job, f"{type(error).__name__}: {error}")

    def _open(self, file: Filed) -> None:
        self._descriptor = self._disk.open(file.name)
        header = _read_header(self._descriptor, file.name)
        if header.filed != file:
            raise BadFile("another than it was")
        if self._touch:
            self._disk.touch(file.name)
        planes = header.filed.manifest.planes
        self._header, self._digest = header, checksum()
        self._plane, self._left, self._at = 0, planes[0].nbytes if planes else 0, header.data_start

    def _next(self, number: int) -> Piece:
        assert self._descriptor is not None
        data = _exactly(self._descriptor, min(self._piece, self._header.size - self._at), self._at)
        self._at += len(data)
        view = memoryview(data)
        planes = self._header.filed.manifest.planes
        while self._plane < len(planes):
            part = view[: self._left]
            self._digest.update(part)
            self._left -= len(part)
            view = view[len(part) :]
            if self._left:
                break
            if self._digest.hexdigest() != self._header.checksums[1 + self._plane]:
                raise BadFile("its planes are damaged")
            self._plane += 1
            self._digest = checksum()
            self._left = planes[self._plane].nbytes if self._plane < len(planes) else 0
        last = self._at == self._header.size
        if last:
            self.close()
        return Piece(number, data, last)

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
