"""To the registry of resumable streams: from callers, from their rows' emitters, from admission.

Credits: Begin, Detach and Forget once a stream, TakeUp and Detach once a connection, Cancel once a row and
connection; Told is bounded by the rows' text, as what callers hear; Wanted once a Submit and Departed.
"""

from types import TracebackType
from typing import Self

import attrs
import trio

from motet.channels import caller
from motet.channels.emitter import ToEmitter
from motet.channels.mailbox import Outlet


@attrs.frozen(eq=False)
class OpenRow:
    """A row that has been submitted, and where its emitter listens. Whoever holds it withdraws it."""

    number: int
    outlet: trio.MemorySendChannel[ToEmitter]
    prompt_tokens: int


@attrs.frozen(eq=False)
class Reader:
    """Who reads a stream now."""

    number: int
    outlet: trio.MemorySendChannel[caller.ToCaller]


@attrs.frozen
class Begin:
    """A stream's rows have been submitted: from here on they are the registry's."""

    name: str
    label: object
    """What whoever takes it up is told of it."""
    rows: tuple[OpenRow, ...]
    reader: Reader


@attrs.frozen
class Told:
    """An event of a stream's row."""

    name: str
    event: caller.ToCaller


@attrs.frozen
class Taken:
    """The stream is there: all its events follow, from the first on."""

    label: object
    prompt_tokens: tuple[int, ...]
    """Of each row."""
    events: int
    """How many there are already."""


@attrs.frozen
class Gone:
    """There is no such stream, or no more."""


@attrs.frozen
class TakeUp:
    """Read a stream from its start; whoever read it until now is told that it was taken up."""

    name: str
    reader: Reader
    reply: Outlet[Taken | Gone]


@attrs.frozen
class Detach:
    """A reader has left."""

    name: str
    reader: int


@attrs.frozen
class Cancel:
    """Its reader wants a row no more; without effect if it has ended, or another reads it now."""

    name: str
    index: int
    reader: int


@attrs.frozen
class Forget:
    """The stream's caller left before it was told that the stream had begun."""

    name: str


@attrs.frozen
class Wanted:
    """Somebody waits for a seat, a place or bytes."""


@attrs.frozen
class Drain:
    """Keep nothing for those that might come back."""


@attrs.frozen
class Closing:
    """Admission has left: no row is anywhere."""


ToResuming = Begin | Told | TakeUp | Detach | Cancel | Forget | Wanted | Drain | Closing


@attrs.frozen
class Named:
    """Where a resumable stream's emitters speak to: the registry, which is told whose event it is."""

    name: str
    outlet: Outlet[Told]

    def send_nowait(self, value: caller.ToCaller, /) -> None:
        """See Outlet."""
        self.outlet.send_nowait(Told(self.name, value))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        """The registry's mailbox stays open for other streams."""
