"""The mailbox: a bounded Trio memory channel that nobody ever waits to send into.

A sender posts only on credit (a seat, one outstanding command, one question), so that a mailbox of
the stated capacity cannot overflow; if it does, that is a bug in the protocol and raises. The bound
of each edge stands in docs/protocols.md.
"""

import contextlib
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class MailboxOverflow(Exception):
    """A message was posted without credit: a bug in the protocol, never a matter of load."""


class Outlet(Protocol[T_contra]):
    """Anything that takes a message at once: a memory channel's sending end, or the device's queue."""

    def send_nowait(self, value: T_contra, /) -> None: ...


def post(outlet: Outlet[T], message: T) -> None:
    """Put a message into a mailbox without waiting.

    A reader that has left (its caller hung up, or its nursery is being cancelled) gets nothing, and
    that is no error: whoever ended it has told, or is telling, those who must know.

    Raises:
        MailboxOverflow: the mailbox is full.
    """
    try:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            outlet.send_nowait(message)
    except trio.WouldBlock:
        raise MailboxOverflow(f"no room for {message!r}") from None
