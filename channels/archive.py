"""Between the persister and its two threads, of which one writes files and one reads them: bytes only.

Each thread has one job at a time, and answers it. ``job`` numbers are never used twice, so that what a
former persister asked for is known for it.
"""

import attrs

from motet.channels.manifest import Manifest
from motet.channels.namespace import Namespace


@attrs.frozen
class Filed:
    """A file, by its header."""

    name: str
    namespace: Namespace
    tokens: tuple[int, ...]
    manifest: Manifest


@attrs.frozen
class Draft:
    """A file that is to be written."""

    namespace: Namespace
    tokens: tuple[int, ...]
    manifest: Manifest
    replaces: tuple[str, ...]
    """Files that it serves for, and that are removed when it is there."""


# --- to the writer ----------------------------------------------------------------------------


@attrs.frozen
class Scan:
    """Read all headers; remove what is worthless, and the oldest until the ceiling holds.

    Answered by Scanned.
    """

    job: int


@attrs.frozen
class Write:
    """The next bytes of a file, the first with its draft. Answered by Written or WriteFailed."""

    job: int
    data: bytes
    draft: Draft | None = None


@attrs.frozen
class Abort:
    """Remove the file that is being written. Answered by Written."""

    job: int


@attrs.frozen
class Remove:
    """Remove a file that cannot be used. Answered by Written."""

    job: int
    name: str


WriterJob = Scan | Write | Abort | Remove


@attrs.frozen
class Scanned:
    """What the directory holds, of any namespace, and the bytes that it takes."""

    job: int
    files: tuple[Filed, ...]
    nbytes: int


@attrs.frozen
class Written:
    """Done. With a ``name`` the file is whole, and a power cut does not take it.

    A draft that cannot be had room for is ``refused``, and nothing is begun.
    """

    job: int
    gone: tuple[str, ...] = ()
    """Files that were removed for it."""
    name: str | None = None
    refused: bool = False
    nbytes: int = 0
    """What the directory takes now."""
    seconds: float = 0.0
    """What the job took of a processor."""


@attrs.frozen
class WriteFailed:
    """The disk did not take it; the file in work is removed."""

    job: int
    error: str


WriterResult = Scanned | Written | WriteFailed


# --- to the reader ----------------------------------------------------------------------------


@attrs.frozen
class Open:
    """Open a file, which must be the one described, and read its first bytes.

    Answered by Piece or ReadFailed.
    """

    job: int
    file: Filed


@attrs.frozen
class ReadOn:
    """Read the next bytes. Answered by Piece or ReadFailed."""

    job: int


ReaderJob = Open | ReadOn


@attrs.frozen
class Piece:
    """Bytes of a file's planes. When the ``last`` are told, all have been compared with their checksums."""

    job: int
    data: bytes
    last: bool


@attrs.frozen
class ReadFailed:
    """The file cannot be read, or, if it is ``damaged``, is not what it should be. It is closed."""

    job: int
    error: str
    damaged: bool = False


ReaderResult = Piece | ReadFailed
