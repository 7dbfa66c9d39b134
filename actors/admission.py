"""The admission queue: who waits, who holds a seat, and the drain.

Owns: the queue of waiting requests, the seats, the count of live rows.
Takes: Submit and Withdraw from callers, Released from prefill and decode, Departed from decode, Drain.
Sends: Admit and Withdraw to prefill; Accepted, Rejected and Failed to a request's emitter; tickets back
to callers.
Waited for by: nobody.

A *seat* is held from Admit until the row's Withdraw has passed the last actor: it is the credit for
messages about the row. A *place* is held until the device has dropped the row's arrays: it is the width
of the batch. A finished row whose caller still reads holds a seat and no place.
"""

from collections import deque
from typing import assert_never

import attrs
import structlog
import trio

from motet.channels import prefill
from motet.channels.admission import (
    Cutoff,
    Departed,
    Drain,
    Released,
    Submit,
    ToAdmission,
    Withdraw,
)
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.gauges import AdmissionGauges
from motet.channels.mailbox import Outlet, post

log = structlog.get_logger()

ToPrefill = prefill.Admit | prefill.Withdraw | prefill.Cutoff | prefill.Closing


@attrs.frozen
class Limits:
    """``places`` rows live at once, ``seats`` rows past the queue, ``waiting`` in it."""

    places: int
    seats: int
    waiting: int


async def admission(
    inbox: trio.MemoryReceiveChannel[ToAdmission],
    to_prefill: Outlet[ToPrefill],
    tickets: Outlet[None],
    limits: Limits,
    gauges: AdmissionGauges,
) -> None:
    """Run until a drain is over."""
    queue = Admission(to_prefill, tickets, limits, gauges)
    with inbox:
        while not queue.over:
            queue.hear(await inbox.receive())
    post(to_prefill, prefill.Closing())


class Admission:
    """The queue's state. Every decision is synchronous."""

    def __init__(
        self,
        to_prefill: Outlet[ToPrefill],
        tickets: Outlet[None],
        limits: Limits,
        gauges: AdmissionGauges,
    ) -> None:
        self._to_prefill = to_prefill
        self._tickets = tickets
        self._limits = limits
        self._gauges = gauges
        self._waiting: deque[Submit] = deque()
        self._live: set[int] = set()
        self._seated: set[int] = set()
        self._turned_away: set[int] = set()  # told so, their Withdraw still to come
        self._draining = False

    @property
    def over(self) -> bool:
        """Draining, and nobody is left."""
        return self._draining and not (self._waiting or self._seated or self._turned_away)

    def hear(self, message: ToAdmission) -> None:
        """Take one message and act on it."""
        match message:
            case Submit():
                self._submit(message)
            case Withdraw(row):
                self._withdraw(row)
            case Released(row):
                self._live.discard(row)
            case Departed(row):  # its Released has come before
                self._seated.discard(row)
                post(self._tickets, None)
            case Drain():
                self._drain()
            case Cutoff():
                post(self._to_prefill, prefill.Cutoff())
            case _:
                assert_never(message)
        self._admit()
        self._gauges.pending_rows = len(self._waiting)
        self._gauges.live_rows = len(self._live)

    def _submit(self, message: Submit) -> None:
        row = message.work.row
        full = len(self._waiting) >= self._limits.waiting and not self._room()
        if self._draining or full:
            self._turned_away.add(row)
            post(message.outlet, Rejected("draining" if self._draining else "busy"))
            log.info("request rejected", request=row, draining=self._draining)
            return
        self._gauges.submitted_rows += 1
        self._waiting.append(message)
        post(message.outlet, Accepted())
        log.info("request queued", request=row, prompt_tokens=len(message.work.prompt))

    def _withdraw(self, row: int) -> None:
        if row in self._seated:
            post(self._to_prefill, prefill.Withdraw(row))
            return
        self._turned_away.discard(row)
        self._waiting = deque(s for s in self._waiting if s.work.row != row)
        post(self._tickets, None)

    def _room(self) -> bool:
        return len(self._live) < self._limits.places and len(self._seated) < self._limits.seats

    def _admit(self) -> None:
        while self._waiting and self._room():
            submit = self._waiting.popleft()
            row = submit.work.row
            self._live.add(row)
            self._seated.add(row)
            post(self._to_prefill, prefill.Admit(submit.work, submit.outlet))
            log.info("request admitted", request=row)

    def _drain(self) -> None:
        self._draining = True
        for submit in self._waiting:
            self._turned_away.add(submit.work.row)
            post(submit.outlet, Failed("server_draining", "the server is shutting down"))
        self._waiting.clear()
