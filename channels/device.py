"""The conversation with the model: typed commands to the device, typed results from it.

Arrays never cross. A row is named by its request's number; a snapshot by a number of the device's
own. Commands run in the order given, but for granted steps, which alternate with the other work:
between two steps of a running group runs at most one other command that computes.
"""

import attrs

from motet.channels.emitter import Finish, TokenLogprob
from motet.channels.manifest import Manifest
from motet.channels.namespace import UNNAMED, Namespace
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
    namespace: Namespace = UNNAMED


# --- commands ---------------------------------------------------------------------------------


@attrs.frozen
class Opening:
    """How a row begins: empty, or as a copy of the first ``length`` tokens of a snapshot.

    A row that is recovered has ``generated`` tokens already, which are read behind its prompt.
    """

    work: Work
    snapshot: int | None
    length: int
    generated: tuple[int, ...] = ()


@attrs.frozen
class Part:
    """One row's share of a chunk; its first opens it.

    With ``last`` it ends the prompt: its last token goes through the model alone behind the chunk, and gives
    the first sample. With ``keep`` a snapshot is taken of what was read with the chunk.
    """

    row: int
    tokens: tuple[int, ...]
    last: bool
    opening: Opening | None = None
    keep: bool = False

    @property
    def reading(self) -> tuple[int, ...]:
        """The tokens that are read with the chunk."""
        return self.tokens[:-1] if self.last else self.tokens


@attrs.frozen
class Chunk:
    """Read some tokens of one prompt or several in one forward, padded on the right if they are unlike.

    The last tokens of all prompts that end with it go through the model together. Answered by Chunked.
    """

    parts: tuple[Part, ...]


@attrs.frozen
class Abandon:
    """Let go of rows in preparation. Answered by one Abandoned each."""

    rows: tuple[int, ...]


@attrs.frozen
class Join:
    """Take rows whose prompts have ended into the group. Answered only if it fails (JoinFault)."""

    rows: tuple[int, ...]


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
class Export:
    """Copy the next bytes of a snapshot out, ``most`` at most, from its byte ``start``.

    Answered by Exported. Exports of one snapshot follow each other from byte 0.
    """

    handle: int
    start: int
    most: int


@attrs.frozen
class Restore:
    """The next bytes of a snapshot that is built again; the first come with its manifest.

    Answered by Restored.
    """

    number: int
    """The restoration's, given by who restores."""
    data: bytes
    manifest: Manifest | None = None
    namespace: Namespace = UNNAMED


@attrs.frozen
class Discard:
    """Drop a restoration that is not done. Without effect on one that is."""

    number: int


@attrs.frozen
class Shutdown:
    """Drop everything and end the device thread."""


PrefillCommand = Chunk | Abandon
DecodeCommand = Join | Step | Drop
StoreCommand = Forget | Shutdown
PersisterCommand = Export | Restore | Discard | Forget
Command = PrefillCommand | DecodeCommand | StoreCommand | PersisterCommand


# --- results to prefill -----------------------------------------------------------------------


@attrs.frozen
class PartRead:
    """What came of one part: read; with ``tokens``, the row's first, or its next if it is recovered; or an
    ``error``.

    With a ``finish`` the last of them ends the row, and its state is already dropped or in ``snapshot``. With
    an ``error`` the row's state is dropped. ``kept`` is the snapshot that the part asked for, if one can be
    taken of this model.
    """

    row: int
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    snapshot: Snapshot | None = None
    kept: Snapshot | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, if the row asks for them."""


@attrs.frozen
class Chunked:
    """A chunk was read in ``seconds``, prompts' last tokens not counted."""

    parts: tuple[PartRead, ...]
    seconds: float


@attrs.frozen
class Abandoned:
    """The row's state is dropped, but for the snapshot of what was read."""

    row: int
    snapshot: Snapshot | None


# --- results to decode ------------------------------------------------------------------------


@attrs.frozen
class RowTokens:
    """New tokens of one row. With a ``finish`` its state is already dropped or in ``snapshot``.

    With an ``error``, which is the row's own and comes behind its tokens, its state is dropped.
    """

    row: int
    tokens: tuple[int, ...]
    finish: Finish | None = None
    snapshot: Snapshot | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, if the row asks for them."""
    error: str | None = None

    @property
    def ends(self) -> bool:
        """Whether they are the row's last."""
        return self.finish is not None or self.error is not None


@attrs.frozen
class Stepped:
    """Tokens that were read, and how many granted steps were used up since the last report.

    Tokens of fast steps are reported together.
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
    """The rows could not be taken into the group, and their state is dropped; the others go on."""

    rows: tuple[int, ...]
    error: str


@attrs.frozen
class Dropped:
    """The row's state is dropped, but for the snapshot. It had ended if there is none to make."""

    row: int
    snapshot: Snapshot | None


# --- results to the persister -----------------------------------------------------------------


@attrs.frozen
class Exported:
    """Bytes of a snapshot from ``start`` on. Without a manifest it cannot be had: forgotten, or of a kind
    that cannot be taken apart."""

    handle: int
    start: int
    manifest: Manifest | None
    data: bytes
    seconds: float
    """What it took of the device's time."""
    busy: bool
    """Whether rows run."""


@attrs.frozen
class Restored:
    """The bytes are taken; with the last of them, the snapshot. With an ``error`` they are all dropped."""

    number: int
    snapshot: Snapshot | None = None
    error: str | None = None
