"""A row in preparation, as the prefill cohort knows it."""

import functools

import attrs

from motet.channels.emitter import ToEmitter
from motet.channels.mailbox import Outlet
from motet.channels.prefill import Lease
from motet.channels.request import Work


@attrs.define(eq=False, slots=False)  # for the cached property
class Joiner:
    """A row in preparation."""

    work: Work
    outlet: Outlet[ToEmitter]
    generated: tuple[int, ...] = ()
    """Tokens that it had when it was sent back or displaced; they are read behind the prompt."""
    asked: bool = True
    """The store's answer is on its way."""
    lease: Lease | None = None
    """That answer; None also while the row waits for another's prefix."""
    read: int = 0
    """Tokens that are in the row's caches, cached ones included."""
    reach: int = 0
    """As ``read``, the chunk on its way included."""
    stops: set[int] = attrs.Factory(set)
    """Lengths at which a snapshot is to be taken; no chunk crosses one."""
    publish: bool = False
    """Take a snapshot at the next chunk's end, wherever that is."""
    waits: int = 0
    """How often it has waited for another's prefix."""
    opened: bool = False
    last_turn: int = 0
    drawn: tuple[int, ...] = ()
    """Tokens that its last chunk gave when it was leaving already."""
    leaving: bool = False
    """Its Abandon is on the way; True also after a Cutoff."""
    withdrawn: bool = False
    displaced: bool = False
    """It is to give way; admission waits for the answer."""
    failed: bool = False
    """Its emitter was told so."""

    @functools.cached_property
    def tokens(self) -> tuple[int, ...]:
        """What is to be read: the prompt, and what was generated before."""
        return self.work.prompt + self.generated

    @property
    def left(self) -> int:
        """Tokens still to read."""
        return len(self.tokens) - self.read

    def keeps(self, length: int) -> bool:
        """Whether a snapshot of so many tokens is still to be taken, perhaps with the chunk on its way."""
        return self.read < length and length in self.stops

    @property
    def to_stop(self) -> int:
        """Tokens until the next stop; all that are left if there is none."""
        return min((stop - self.read for stop in self.stops if stop > self.read), default=self.left)
