"""To the prompt-cache store: from admission, prefill and decode, from the persister.

Credits: Take and ReleaseLease once a seat; Put once a seat from each of prefill and decode; one Trim, which
is answered before the next. From the persister: Found and Loaded, one each a row that has asked; one
Persisted.
"""

import attrs

from motet.channels.device import Snapshot
from motet.channels.namespace import UNNAMED, Namespace


@attrs.frozen
class Take:
    """Which snapshot holds the longest usable prefix of these tokens? Answered by a Lease.

    At least one token of the prompt is always left to be read. With ``edge``, only a prefix whose
    length is a multiple of it will do.
    """

    row: int
    prompt: tuple[int, ...]
    edge: int = 1
    namespace: Namespace = UNNAMED


@attrs.frozen
class ReleaseLease:
    """The row needs its lease no longer. Idempotent; follows Take on the same channel."""

    row: int


@attrs.frozen
class Put:
    """A snapshot whose ``snapshot.length`` tokens are the first of ``tokens``; ownership passes."""

    tokens: tuple[int, ...]
    snapshot: Snapshot


@attrs.frozen
class Found:
    """There is a file for the row's Load, which takes ``nbytes``: Fetch it, or Cancel."""

    row: int
    nbytes: int


@attrs.frozen
class Loaded:
    """The end of a Load, always said: a snapshot restored from disk, which holds ``tokens``.

    None for a miss, and when somebody else was given what was read for both.
    """

    row: int
    snapshot: Snapshot | None
    tokens: tuple[int, ...] = ()


@attrs.frozen
class Persisted:
    """The end of a Persist, always said. With ``stored`` a file holds it that a power cut does not take."""

    handle: int
    stored: bool


@attrs.frozen
class Trim:
    """Hold no more than ``allowed`` bytes from now on. Answered by Trimmed, as soon as that is so.

    What is leased is not evicted: the answer waits for its release.
    """

    allowed: int


@attrs.frozen
class Closing:
    """One of the two writers has left; when both have, flush and leave."""


ToStore = Take | ReleaseLease | Put | Found | Loaded | Persisted | Trim | Closing
