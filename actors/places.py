"""The places of the batch: which rows hold them, what is kept for interactive work, who gives way to it.

Interactive work holds one place of the batch, with the bytes of a typical interactive row: background rows
are admitted only beside it. If that place is taken too, or there is but one, an interactive row takes a
background row's: of those that were displaced least often the one admitted last, which has the least to lose.
A row is displaced MOST_DISPLACED times at most, and not at all if it was due (fairness.py): so none starves.
"""

from collections import deque
from collections.abc import Iterable

import attrs

from motet.actors.ledger import Ledger
from motet.channels.admission import Submit
from motet.channels.request import Priority
from motet.engine.projection import Projection, RowLength

MOST_DISPLACED = 3
"""Times that a row is displaced at most."""
_SEEN = 9  # interactive rows whose median is the typical one


@attrs.frozen(eq=False)
class Waiting:
    """A row in the queue, until ``deadline``."""

    submit: Submit
    deadline: float
    generated: tuple[int, ...] = ()
    """Tokens that it had when it was displaced."""
    displaced: int = 0
    """How often it was."""

    @property
    def row(self) -> int:
        """Its number."""
        return self.submit.work.row

    @property
    def client(self) -> str:
        """Whose it is."""
        return self.submit.work.client

    @property
    def priority(self) -> Priority:
        """How urgent it is."""
        return self.submit.work.priority

    @property
    def length(self) -> RowLength:
        """What it can grow to."""
        return RowLength(len(self.submit.work.prompt), self.submit.work.limit)


@attrs.define(eq=False)
class Holder:
    """A row that lives."""

    waiting: Waiting
    stays: bool
    """It is not to be displaced."""
    leaving: bool = False
    """Its Withdraw is on the way: the place will soon be free."""


class Places:
    """The rows that live, from Admit until Released or Displaced, and their bytes.

    Args:
        count: rows that live at once.
        budget: bytes for them and the prompt cache.
        projection: what rows cost.
    """

    def __init__(self, count: int, budget: int, projection: Projection) -> None:
        self._count = count
        self._budget = budget
        self._ledger = Ledger(projection)
        self._holders: dict[int, Holder] = {}  # in the order of their admission
        self._seen: deque[RowLength] = deque(maxlen=_SEEN)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def needed(self) -> int:
        """Bytes that the live rows may need."""
        return self._ledger.needed()

    @property
    def background(self) -> int:
        """Background rows that live."""
        return self._living("background")

    def left(self, waiting: Waiting) -> int:
        """Bytes that the live rows and one more leave of the budget; negative if they do not fit."""
        return self._budget - self._ledger.needed(waiting.length)

    def free(self, waiting: Waiting) -> bool:
        """Whether there is a place for a row."""
        if waiting.priority == "background" and self.background >= max(self._count - 1, 1):
            return False
        return len(self._holders) < self._count

    def spares(self, waiting: Waiting) -> bool:
        """Whether a row leaves what is kept for interactive work; one that would live alone need not."""
        if waiting.priority == "interactive" or not self._holders or self._living("interactive"):
            return True
        return self._ledger.needed(waiting.length, *self._typical()) <= self._budget

    def seen(self, waiting: Waiting) -> None:
        """A row has come: an interactive one tells what is typical."""
        if waiting.priority == "interactive":
            self._seen.append(waiting.length)

    def enter(self, waiting: Waiting, *, stays: bool) -> None:
        """A row is admitted; if it ``stays`` it is not displaced."""
        stays = stays or waiting.priority == "interactive" or waiting.displaced >= MOST_DISPLACED
        self._holders[waiting.row] = Holder(waiting, stays)
        self._ledger.enter(waiting.row, waiting.length)

    def leave(self, row: int) -> Waiting:
        """The device has dropped the row."""
        self._ledger.leave(row)
        return self._holders.pop(row).waiting

    def withdrawn(self, row: int) -> None:
        """A row's Withdraw was passed on."""
        if row in self._holders:
            self._holders[row].leaving = True

    def kept(self, row: int) -> None:
        """A row could not be displaced: it is not asked for again."""
        if row in self._holders:
            self._holders[row].stays = True

    def to_displace(self, waiting: Waiting) -> int | None:
        """The row that is to give way to an interactive one, if that will have room then."""
        if waiting.priority == "background" or (self.free(waiting) and self.left(waiting) >= 0):
            return None
        if any(holder.leaving for holder in self._holders.values()):
            return None  # what it leaves may do
        movable = [holder.waiting for holder in self._holders.values() if not holder.stays]
        without = self._ledger.needed(waiting.length, without=[one.row for one in movable])
        if not movable or without > self._budget:
            return None
        return min(reversed(movable), key=lambda one: one.displaced).row

    def _living(self, priority: Priority) -> int:
        return sum(holder.waiting.priority == priority for holder in self._holders.values())

    def _typical(self) -> Iterable[RowLength]:
        """The median of the last interactive rows; nothing if there was none."""
        by_length = sorted(self._seen, key=lambda length: length.total)
        return by_length[len(by_length) // 2 :][:1]
