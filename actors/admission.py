"""The admission queue: who waits, who holds a seat, the budget of bytes, and the drain.

Owns: the queue of waiting requests, the seats, the ledger of the live rows' bytes.
Takes: Submit and Withdraw from callers, Released from prefill and decode, Departed from decode, Trimmed from
the store, Drain.
Sends: Admit and Withdraw to prefill; Trim to the store; Accepted, Rejected and Failed to a request's emitter;
tickets back to callers.
Waited for by: nobody.

A *seat* is held from Admit until the row's Withdraw has passed the last actor: it is the credit for
messages about the row. A *place* is held until the device has dropped the row's arrays: it is the width
of the batch. A finished row whose caller still reads holds a seat and no place.

Who is first in the queue is admitted first. A row is admitted when there is a place, and when what all live
rows may need with it fits the budget; live rows come before the prompt cache, which is asked to make room.
A row that could not fit alone does not get here (actors/engine.py).
"""

import math
from collections import deque
from collections.abc import Callable
from typing import assert_never

import attrs
import structlog
import trio

from motet.actors.ledger import CacheShare, Ledger
from motet.channels import prefill, store
from motet.channels.admission import (
    Cutoff,
    Departed,
    Drain,
    Released,
    Submit,
    ToAdmission,
    Trimmed,
    Withdraw,
)
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.gauges import AdmissionGauges
from motet.channels.mailbox import Outlet, post
from motet.engine.projection import Projection, RowLength

log = structlog.get_logger()

ToPrefill = prefill.Admit | prefill.Withdraw | prefill.Cutoff | prefill.Closing


@attrs.frozen
class Limits:
    """What is allowed at most."""

    places: int
    """Rows that live at once."""
    seats: int
    """Rows past the queue."""
    waiting: int
    """Rows in it."""
    patience: float = math.inf
    """Seconds that a row waits there."""


@attrs.frozen
class Budget:
    """Bytes for the live rows and the prompt cache together, and what they are reckoned by."""

    nbytes: int
    cache: int
    """The prompt cache's ceiling."""
    projection: Projection

    @property
    def cache_at_first(self) -> int:
        """What the store may hold before a row lives."""
        return min(self.cache, self.nbytes)


@attrs.frozen
class Outlets:
    """Whom the queue speaks to."""

    prefill: Outlet[ToPrefill]
    store: Outlet[store.Trim]
    tickets: Outlet[None]


@attrs.frozen
class Waiting:
    """A row in the queue, until ``deadline``."""

    submit: Submit
    deadline: float

    @property
    def row(self) -> int:
        """Its number."""
        return self.submit.work.row

    @property
    def length(self) -> RowLength:
        """What it can grow to."""
        return _length(self.submit)


async def admission(
    inbox: trio.MemoryReceiveChannel[ToAdmission],
    outlets: Outlets,
    limits: Limits,
    budget: Budget,
    gauges: AdmissionGauges,
) -> None:
    """Run until a drain is over."""
    queue = Admission(outlets, limits, budget, gauges, trio.current_time)
    with inbox:
        while not queue.over:
            with trio.move_on_at(queue.deadline) as waiting:
                queue.hear(await inbox.receive())
            if waiting.cancelled_caught:
                queue.expire()
    post(outlets.prefill, prefill.Closing())


class Admission:
    """The queue's state. Every decision is synchronous."""

    def __init__(
        self,
        outlets: Outlets,
        limits: Limits,
        budget: Budget,
        gauges: AdmissionGauges,
        clock: Callable[[], float],
    ) -> None:
        self._to = outlets
        self._limits = limits
        self._budget = budget
        self._gauges = gauges
        self._clock = clock
        self._waiting: deque[Waiting] = deque()
        self._live = Ledger(budget.projection)
        self._cache = CacheShare(outlets.store, budget.cache_at_first, budget.cache)
        self._seated: set[int] = set()
        self._turned_away: set[int] = set()  # told so, their Withdraw still to come
        self._draining = False

    @property
    def over(self) -> bool:
        """Draining, and nobody is left."""
        return self._draining and not (self._waiting or self._seated or self._turned_away)

    @property
    def deadline(self) -> float:
        """When to ``expire`` next: all wait equally long, so the first in the queue is the first."""
        return self._waiting[0].deadline if self._waiting else math.inf

    def hear(self, message: ToAdmission) -> None:
        """Take one message and act on it."""
        match message:
            case Submit():
                self._submit(message)
            case Withdraw(row):
                self._withdraw(row)
            case Released(row):
                self._live.leave(row)
            case Departed(row):  # its Released has come before
                self._seated.discard(row)
                post(self._to.tickets, None)
            case Trimmed():
                self._cache.answered()
            case Drain():
                self._drain()
            case Cutoff():
                post(self._to.prefill, prefill.Cutoff())
            case _:
                assert_never(message)
        self._go_on()

    def expire(self) -> None:
        """Let the rows go whose time in the queue is over."""
        now = self._clock()
        while self._waiting and self._waiting[0].deadline <= now:
            waited = f"waited {self._limits.patience:g} s for its turn"
            self._turn_away(self._waiting.popleft().submit, "queue_timeout", waited)
        self._go_on()

    def _go_on(self) -> None:
        self._admit()
        needed = self._live.needed()
        self._cache.offer(self._budget.nbytes - needed)
        self._gauges.pending_rows = len(self._waiting)
        self._gauges.live_rows = len(self._live)
        self._gauges.kv_projected_bytes = needed

    def _submit(self, message: Submit) -> None:
        row = message.work.row
        full = len(self._waiting) >= self._limits.waiting and not self._next(message)
        if self._draining or full:
            self._turned_away.add(row)
            post(message.outlet, Rejected("draining" if self._draining else "busy"))
            log.info("request rejected", request=row, draining=self._draining)
            return
        self._gauges.submitted_rows += 1
        self._waiting.append(Waiting(message, self._clock() + self._limits.patience))
        post(message.outlet, Accepted())
        log.info("request queued", request=row, prompt_tokens=len(message.work.prompt))

    def _withdraw(self, row: int) -> None:
        if row in self._seated:
            post(self._to.prefill, prefill.Withdraw(row))
            return
        self._turned_away.discard(row)
        self._waiting = deque(waiting for waiting in self._waiting if waiting.row != row)
        post(self._to.tickets, None)

    def _next(self, submit: Submit) -> bool:
        """Whether a new row would be admitted as soon as the store has made room."""
        fits = self._live.needed(_length(submit)) <= self._budget.nbytes
        return not self._waiting and self._place() and fits

    def _place(self) -> bool:
        return len(self._live) < self._limits.places and len(self._seated) < self._limits.seats

    def _fits(self, length: RowLength) -> bool:
        left = self._budget.nbytes - self._live.needed(length)
        return left >= 0 and self._cache.fits(left)

    def _admit(self) -> None:
        while self._waiting and self._place() and self._fits(self._waiting[0].length):
            waiting = self._waiting.popleft()
            row, submit = waiting.row, waiting.submit
            self._live.enter(row, waiting.length)
            self._seated.add(row)
            post(self._to.prefill, prefill.Admit(submit.work, submit.outlet))
            log.info("request admitted", request=row)

    def _drain(self) -> None:
        self._draining = True
        for waiting in self._waiting:
            self._turn_away(waiting.submit, "server_draining", "the server is shutting down")
        self._waiting.clear()

    def _turn_away(self, submit: Submit, code: str, why: str) -> None:
        self._turned_away.add(submit.work.row)
        post(submit.outlet, Failed(code, why))


def _length(submit: Submit) -> RowLength:
    return RowLength(len(submit.work.prompt), submit.work.limit)
