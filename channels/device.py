"""The conversation with the model: typed commands to the device, typed results from it.

Arrays never cross. A row is named by its request's number; a snapshot by a number of the device's
own. Commands run in the order given, but for granted steps, which alternate with the other work:
between two steps of a running group runs at most one other command that computes.
"""

import attrs

from motet.channels.emitter import Finish
from motet.channels.request import Work


@attrs.frozen
class Snapshot:
    """A row's state at a token boundary, kept by the device until Forget."""

    handle: int
    length: int
    """Tokens that it holds."""
    nbytes: int
    trimmable: bool
    """Whether a shorter prefix can be cut from it; else it serves exactly its length."""


# --- commands ---------------------------------------------------------------------------------


@attrs.frozen
class Opening:
    """How a row begins: empty, or as a copy of the first ``length`` tokens of a snapshot."""

    work: Work
    snapshot: int | None
    length: int


@attrs.frozen
class Chunk:
    """Read ``tokens`` of a row's prompt; the row's first chunk opens it.

    With ``last`` the chunk ends the prompt: all but its last token are read, then that one alone,
    whose logits give the first sample. Answered by Chunked or ChunkFault.
    """

    row: int
    tokens: tuple[int, ...]
    last: bool
    opening: Opening | None = None


@attrs.frozen
class Abandon:
    """Let go of rows in preparation. Answered by one Abandoned each."""

    rows: tuple[int, ...]


@attrs.frozen
class Join:
    """Take a prepared row into the running group. Answered only if it fails (JoinFault)."""

    row: int


@attrs.frozen
class Step:
    """Grant so many more steps of the group. Answered by Stepped or StepFault, as they are done."""

    count: int


@attrs.frozen
class Drop:
    """Take rows out of the group. Answered by one Dropped each."""

    rows: tuple[int, ...]


@attrs.frozen
class Forget:
    """Drop snapshots."""

    handles: tuple[int, ...]


@attrs.frozen
class Shutdown:
    """Drop everything and end the device thread."""


PrefillCommand = Chunk | Abandon
DecodeCommand = Join | Step | Drop
StoreCommand = Forget | Shutdown
Command = PrefillCommand | DecodeCommand | StoreCommand


# --- results to prefill -----------------------------------------------------------------------


@attrs.frozen
class Chunked:
    """A chunk was read in ``seconds``; ``first`` is the row's first token if it was the last chunk.

    With a ``finish`` that token ends the row, and its state is already dropped or in ``snapshot``.
    """

    row: int
    seconds: float
    first: int | None = None
    finish: Finish | None = None
    snapshot: Snapshot | None = None


@attrs.frozen
class ChunkFault:
    """A chunk failed; the row's state is dropped."""

    row: int
    error: str


@attrs.frozen
class Abandoned:
    """The row's state is dropped, but for the snapshot of what was read."""

    row: int
    snapshot: Snapshot | None


# --- results to decode ------------------------------------------------------------------------


@attrs.frozen
class RowTokens:
    """New tokens of one row. With a ``finish`` its state is already dropped or in ``snapshot``."""

    row: int
    tokens: tuple[int, ...]
    finish: Finish | None = None
    snapshot: Snapshot | None = None


@attrs.frozen
class Stepped:
    """Tokens that were read, and how many granted steps were used up since the last report.

    Tokens read within a few milliseconds are reported together.
    """

    rows: tuple[RowTokens, ...]
    steps: int


@attrs.frozen
class StepFault:
    """A step failed: the group's state is dropped with all its rows."""

    rows: tuple[int, ...]
    steps: int
    error: str


@attrs.frozen
class JoinFault:
    """The row could not be taken into the group, and its state is dropped; the others go on."""

    row: int
    error: str


@attrs.frozen
class Dropped:
    """The row's state is dropped, but for the snapshot. It had ended if there is none to make."""

    row: int
    snapshot: Snapshot | None
