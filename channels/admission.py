"""To the admission queue.

Credits: callers hold a ticket for each Submit and its one Withdraw; decode and prefill send one
Released and decode one Departed a seat; the store answers the one Trim that is out, and prefill or decode the
one Displace.
"""

import attrs

from motet.channels.emitter import ToEmitter
from motet.channels.mailbox import Outlet
from motet.channels.request import Work


@attrs.frozen
class Submit:
    """A request, and where its emitter listens."""

    work: Work
    outlet: Outlet[ToEmitter]


@attrs.frozen
class Withdraw:
    """The caller has left its block, however: follows each Submit exactly once."""

    row: int


@attrs.frozen
class Released:
    """The device has dropped the row's arrays: its place in the batch is free."""

    row: int


@attrs.frozen
class Departed:
    """The row's Withdraw has passed the last actor: its seat and ticket are free."""

    row: int


@attrs.frozen
class Displaced:
    """The row has given way: the device has dropped its arrays. It goes on behind these tokens."""

    row: int
    generated: tuple[int, ...]


@attrs.frozen
class Kept:
    """The row that was to give way does not: it is ending, or being recovered."""

    row: int


@attrs.frozen
class Trimmed:
    """The store holds no more than the last Trim allowed, and will not."""


@attrs.frozen
class Drain:
    """Take no new work; leave when the last row has departed."""


@attrs.frozen
class Cutoff:
    """The grace of a drain is over: end what is left, truthfully."""


ToAdmission = Submit | Withdraw | Released | Departed | Displaced | Kept | Trimmed | Drain | Cutoff
