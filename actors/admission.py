"""The admission queue: who waits, who holds a seat, the budget of bytes, and the drain.

Owns: the queue of waiting requests, the seats, the places and the bytes of the live rows.
Takes: Submit and Withdraw from callers, Released, Displaced and Kept from prefill and decode, Departed from
decode, Trimmed from the store, Drain.
Sends: Admit, Displace and Withdraw to prefill; Trim to the store; Wanted and Closing to the registry of
resumable streams; Accepted, Rejected and Failed to a request's emitter; tickets back to callers.
Waited for by: nobody.

A *seat* is held from Admit until the row's Withdraw has passed the last actor: it is the credit for
messages about the row. A *place* is held until the device has dropped the row's arrays: it is the width
of the batch. A finished row whose caller still reads holds a seat and no place; likewise one that was
displaced and waits once more.

Who is first in the queue (fairness.py) is admitted first. A row is admitted when there is a place for it
(places.py), and when what all live rows may need with it fits the budget; live rows come before the prompt
cache, which is asked to make room. A row that could not fit alone does not get here (actors/engine.py).
"""

import math
from collections.abc import Callable
from typing import assert_never

import attrs
import structlog
import trio

from motet.actors.fairness import FairQueue
from motet.actors.ledger import CacheShare
from motet.actors.places import Places, Waiting
from motet.channels import prefill, resuming, store
from motet.channels.admission import (
    Cutoff,
    Departed,
    Displaced,
    Drain,
    Kept,
    Released,
    Submit,
    ToAdmission,
    Trimmed,
    Withdraw,
)
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.gauges import AdmissionGauges
from motet.channels.mailbox import Outlet, post
from motet.engine.projection import Projection

log = structlog.get_logger()

ToPrefill = prefill.Admit | prefill.Withdraw | prefill.Displace | prefill.Cutoff | prefill.Closing


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
    resuming: Outlet[resuming.Wanted | resuming.Closing]


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
    post(outlets.resuming, resuming.Closing())


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
        self._queue: FairQueue[Waiting] = FairQueue()
        self._fresh: dict[int, Waiting] = {}  # those of the queue that never lived, in order of arrival
        self._places = Places(limits.places, budget.nbytes, budget.projection)
        self._cache = CacheShare(outlets.store, budget.cache_at_first, budget.cache)
        self._displacing: int | None = None  # the row that was told to give way
        self._seated: set[int] = set()
        self._withdrawn: set[int] = set()  # of the seated: their Withdraw was passed on
        self._turned_away: set[int] = set()  # told so, their Withdraw still to come
        self._draining = False
        self._cut_off = False

    @property
    def over(self) -> bool:
        """Draining, and nobody is left."""
        return self._draining and not (self._queue or self._seated or self._turned_away)

    @property
    def deadline(self) -> float:
        """When to ``expire`` next: all wait equally long, so the first that came is the first."""
        return next(iter(self._fresh.values())).deadline if self._fresh else math.inf

    def hear(self, message: ToAdmission) -> None:
        """Take one message and act on it."""
        match message:
            case Submit():
                self._submit(message)
            case Withdraw(row):
                self._withdraw(row)
            case Released(row):
                self._places.leave(row)
            case Departed(row):  # its Released has come before
                self._seated.discard(row)
                self._withdrawn.discard(row)
                post(self._to.tickets, None)
            case Displaced(row, generated):
                self._displaced(row, generated)
            case Kept(row):
                self._displacing = None
                self._places.kept(row)
            case Trimmed():
                self._cache.answered()
            case Drain():
                self._drain()
            case Cutoff():
                self._cutoff()
            case _:
                assert_never(message)
        self._go_on()
        # Not with every message: the row that was let go for the last Wanted takes a step to leave.
        if self._queue and isinstance(message, Submit | Departed):
            post(self._to.resuming, resuming.Wanted())

    def expire(self) -> None:
        """Let the rows go whose time in the queue is over."""
        now = self._clock()
        for waiting in [waiting for waiting in self._fresh.values() if waiting.deadline <= now]:
            self._turn_away(waiting, "queue_timeout", f"waited {self._limits.patience:g} s for its turn")
        self._go_on()

    def _go_on(self) -> None:
        self._admit()
        needed = self._places.needed
        self._cache.offer(self._budget.nbytes - needed)
        self._gauges.pending_rows = len(self._queue)
        self._gauges.pending_background_rows = self._queue.waiting("background")
        self._gauges.live_rows = len(self._places)
        self._gauges.kv_projected_bytes = needed

    def _submit(self, message: Submit) -> None:
        waiting = Waiting(message, self._clock() + self._limits.patience)
        row = waiting.row
        if self._draining or self._full(waiting):
            self._turned_away.add(row)
            post(message.outlet, Rejected("draining" if self._draining else "busy"))
            log.info("request rejected", request=row, draining=self._draining)
            return
        self._gauges.submitted_rows += 1
        self._places.seen(waiting)
        self._queue.add(waiting)
        self._fresh[row] = waiting
        post(message.outlet, Accepted())
        log.info("request queued", request=row, prompt_tokens=len(message.work.prompt))

    def _full(self, newcomer: Waiting) -> bool:
        """Whether as many wait as may. Background rows are not counted against an interactive one."""
        behind = newcomer.priority == "background"
        counted = sum(behind or other.priority == "interactive" for other in self._fresh.values())
        return counted >= self._limits.waiting and not self._next(newcomer)

    def _withdraw(self, row: int) -> None:
        self._leave_queue(row)
        if row in self._seated:
            self._withdrawn.add(row)
            self._places.withdrawn(row)
            post(self._to.prefill, prefill.Withdraw(row))
            return
        self._turned_away.discard(row)
        post(self._to.tickets, None)

    def _leave_queue(self, row: int) -> None:
        self._queue.remove(row)
        self._fresh.pop(row, None)

    def _next(self, waiting: Waiting) -> bool:
        """Whether a new row would be admitted as soon as the store has made room."""
        ahead = len(self._queue)
        if waiting.priority == "interactive" and not self._due():
            ahead = self._queue.waiting("interactive")
        return not ahead and self._place(waiting) and self._places.left(waiting) >= 0

    # --- room ---

    def _admit(self) -> None:
        while (first := self._first()) is not None and self._room(first):
            due = self._due()
            self._queue.take(first)
            self._fresh.pop(first.row, None)
            self._places.enter(first, stays=due)
            self._seated.add(first.row)
            post(self._to.prefill, prefill.Admit(first.submit.work, first.submit.outlet, first.generated))
            log.info("request admitted", request=first.row, generated=len(first.generated))
        if first is not None and self._seat(first):
            self._displace_for(first)

    def _first(self) -> Waiting | None:
        return self._queue.first(background_lives=self._places.background > 0)

    def _due(self) -> bool:
        return self._queue.due(background_lives=self._places.background > 0)

    def _room(self, first: Waiting) -> bool:
        if not self._place(first) or not (self._due() or self._places.spares(first)):
            return False
        left = self._places.left(first)
        return left >= 0 and self._cache.fits(left)

    def _place(self, waiting: Waiting) -> bool:
        return self._seat(waiting) and self._places.free(waiting)

    def _seat(self, waiting: Waiting) -> bool:
        """Whether a row has a seat or there is one for it; the last is interactive work's."""
        reserved = 1 if waiting.priority == "background" else 0
        return waiting.row in self._seated or len(self._seated) < self._limits.seats - reserved

    def _displace_for(self, first: Waiting) -> None:
        """Have a background row give way, one at a time."""
        if self._displacing is None:
            self._displacing = self._places.to_displace(first)
            if self._displacing is not None:
                post(self._to.prefill, prefill.Displace(self._displacing))

    def _displaced(self, row: int, generated: tuple[int, ...]) -> None:
        self._displacing = None
        was = self._places.leave(row)
        if row in self._withdrawn:
            return  # its Withdraw has crossed this, and follows it to the end of its way
        waiting = attrs.evolve(was, deadline=math.inf, generated=generated, displaced=was.displaced + 1)
        if self._cut_off:
            self._fail_at_cutoff(waiting)
            return
        self._gauges.displaced_rows += 1
        self._queue.put_back(waiting)
        log.info("request displaced", request=row, generated=len(generated))

    # --- the end ---

    def _drain(self) -> None:
        """What never lived is told; a row that was displaced has its turn yet."""
        self._draining = True
        for waiting in list(self._fresh.values()):
            self._turn_away(waiting, "server_draining", "the server is shutting down")

    def _cutoff(self) -> None:
        self._cut_off = True
        post(self._to.prefill, prefill.Cutoff())
        while (waiting := self._first()) is not None:  # they were displaced
            self._leave_queue(waiting.row)
            self._fail_at_cutoff(waiting)

    def _fail_at_cutoff(self, waiting: Waiting) -> None:
        post(waiting.submit.outlet, Failed("server_shutdown", "the server is shutting down"))

    def _turn_away(self, waiting: Waiting, code: str, why: str) -> None:
        self._leave_queue(waiting.row)
        self._turned_away.add(waiting.row)
        post(waiting.submit.outlet, Failed(code, why))
