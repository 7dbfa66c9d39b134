"""The file system as the archive needs it: one flat directory. A port, so that crashes can be rehearsed."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator
from typing import Protocol

import attrs

BLOCK = 4096
"""Files are reckoned in whole blocks of so many bytes."""


@attrs.frozen
class FileInfo:
    """A name in the directory."""

    name: str
    size: int
    allocated: int
    """Bytes that it takes, or will take when the holes that it was made with are filled."""
    used_at: int
    """When it was last written or touched, in nanoseconds."""
    regular: bool = True
    """Whether it is a file, and no link or directory."""


class FileInWork(Protocol):
    """A file that is being written. Locked: whoever finds it can tell that its writer lives."""

    def write(self, offset: int, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A directory. Everything raises OSError."""

    def files(self) -> list[FileInfo]:
        """What is there."""

    def own_bytes(self) -> int:
        """What the directory itself takes."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from making and removing files meanwhile."""

    def create(self, name: str, size: int) -> FileInWork:
        """A new file of ``size`` bytes, all of it a hole. Its name counts as temporary."""

    def abandoned(self, name: str) -> bool:
        """Whether nobody has this temporary file in work."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None:
        """Without effect if it is not there."""

    def sync(self) -> None:
        """Make names durable: what was created, renamed and removed."""

    def touch(self, name: str) -> None:
        """It was used now."""

    def open(self, name: str) -> int:
        """A file descriptor to read from."""


class LocalDisk:
    """A directory of the machine."""

    def __init__(self, directory: pathlib.Path, *, make: bool = True) -> None:
        self.directory = directory
        if make:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # prompts are in it

    def files(self) -> list[FileInfo]:
        found = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    stat = entry.stat(follow_symlinks=False)
                    whole = -(-stat.st_size // BLOCK) * BLOCK
                    allocated = max(whole, stat.st_blocks * 512)
                    regular = entry.is_file(follow_symlinks=False)
                    found.append(FileInfo(entry.name, stat.st_size, allocated, stat.st_mtime_ns, regular))
        return found

    def own_bytes(self) -> int:
        return os.stat(self.directory).st_blocks * 512

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def create(self, name: str, size: int) -> "LocalFile":
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = LocalFile(os.open(self.directory / name, flags, 0o600))
        fcntl.flock(file.descriptor, fcntl.LOCK_EX)
        os.truncate(file.descriptor, size)
        return file

    def abandoned(self, name: str) -> bool:
        try:
            descriptor = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.directory / old, self.directory / new)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def sync(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)

    def touch(self, name: str) -> None:
        os.utime(self.directory / name)

    def open(self, name: str) -> int:
        return os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


@attrs.define
class LocalFile:
    """A file of the machine."""

    descriptor: int

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, offset)
            offset += written
            view = view[written:]

    def sync(self) -> None:
        _flush(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def _flush(descriptor: int) -> None:
    """To the medium. On macOS fsync stops at the drive's own buffer."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)
