"""To the SSD persister: from the store, from the device, from the persister's own threads.

Credits: a row has one Load unanswered at most, and for it one Fetch or Cancel, or both; one Persist is
unanswered; one Export and one Restore; each thread has one job.
"""

import attrs

from motet.channels.archive import ReaderResult, WriterResult
from motet.channels.device import Exported, Restored
from motet.channels.namespace import UNNAMED, Namespace


@attrs.frozen
class Load:
    """Is there a file that serves a prefix of these tokens longer than ``beyond``?

    If so Found answers first, and waits for Fetch or Cancel. Ended by exactly one Loaded.
    """

    row: int
    tokens: tuple[int, ...]
    beyond: int
    edge: int = 1
    namespace: Namespace = UNNAMED


@attrs.frozen
class Fetch:
    """Room is kept for what was Found: restore it."""

    row: int


@attrs.frozen
class Cancel:
    """The row needs its Load no longer. Without effect if that has ended."""

    row: int


@attrs.frozen
class Persist:
    """Write a snapshot to disk if it is worth it. Ended by exactly one Persisted."""

    handle: int
    tokens: tuple[int, ...]
    namespace: Namespace = UNNAMED


@attrs.frozen
class Closing:
    """The store has left."""


ToPersister = Load | Fetch | Cancel | Persist | Closing | Exported | Restored | WriterResult | ReaderResult
