"""The prefill cohort: rows whose prompts are being read.

Owns: the joiners, and which of them reads next.
Takes: Admit, Withdraw, Cutoff and Closing from admission; Lease from the store; results from the device.
Sends: Take, ReleaseLease and Put to the store; Chunk and Abandon to the device; Join, Withdraw, Cutoff and
Closing to decode; Released to admission; Prepared and Failed to emitters.
Waited for by: nobody. It waits for its inbox alone, with at most one Chunk outstanding.

Joiners take turns by chunks: the one with the least left goes first, and every eighth turn goes to the one
that has waited longest. So a short prompt never waits for a long one to end, nor a long one for ever.
"""

from collections.abc import Iterable
from typing import assert_never

import attrs
import structlog
import trio

from motet.actors.chunks import ChunkSizer, next_chunk, next_edge
from motet.channels import admission, decode
from motet.channels import store as stores
from motet.channels.device import (
    Abandon,
    Abandoned,
    Chunk,
    Chunked,
    ChunkFault,
    Opening,
    PrefillCommand,
    Snapshot,
)
from motet.channels.emitter import Failed, Prepared, ToEmitter
from motet.channels.gauges import PrefillGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.prefill import Admit, Closing, Cutoff, Lease, ToPrefill, Withdraw
from motet.channels.request import Work

log = structlog.get_logger()

_OLDEST_EVERY = 8  # turns
_IDLE_STALLS = 2  # a chunk's time, in stall targets, when nobody else is about


@attrs.frozen
class Pace:
    """How prompts are cut into chunks."""

    stall: float
    """Seconds that a chunk may take while rows run or wait."""
    largest: int
    """Most tokens of a chunk."""
    forward_seconds: float
    """A forward of one token."""
    token_seconds: float
    """The first estimate of what each more token adds."""
    fixed: bool
    """Chunks end at multiples of ``largest``, whatever the load, and hits are used only there."""
    joiners: int
    """Prompts that are read by turns at most; more wait for one to be done."""


@attrs.define(eq=False)
class Joiner:
    """A row in preparation."""

    work: Work
    outlet: Outlet[ToEmitter]
    lease: Lease | None = None
    read: int = 0
    """Tokens of the prompt that are in the row's caches, cached ones included."""
    opened: bool = False
    last_turn: int = 0
    leaving: bool = False
    """Its Abandon is on the way; True also after a Cutoff."""
    withdrawn: bool = False

    @property
    def left(self) -> int:
        """Tokens still to read."""
        return len(self.work.prompt) - self.read


ToStore = stores.Take | stores.ReleaseLease | stores.Put | stores.Closing
ToDecode = decode.Join | decode.Withdraw | decode.Cutoff | decode.Closing


@attrs.frozen
class Outlets:
    """Whom the cohort speaks to."""

    admission: Outlet[admission.Released]
    store: Outlet[ToStore]
    device: Outlet[PrefillCommand]
    decode: Outlet[ToDecode]


async def prefill(
    inbox: trio.MemoryReceiveChannel[ToPrefill],
    outlets: Outlets,
    pace: Pace,
    gauges: PrefillGauges,
) -> None:
    """Run until admission has left."""
    cohort = Cohort(outlets, pace, gauges)
    with inbox:
        while not cohort.over:
            cohort.hear(await inbox.receive())
    post(outlets.store, stores.Closing())
    post(outlets.decode, decode.Closing())


class Cohort:
    """The joiners. Every decision is synchronous."""

    def __init__(self, outlets: Outlets, pace: Pace, gauges: PrefillGauges) -> None:
        self.over = False
        self._to = outlets
        self._pace = pace
        self._gauges = gauges
        self._sizer = ChunkSizer(pace.forward_seconds, pace.token_seconds, pace.largest)
        self._joiners: dict[int, Joiner] = {}
        self._passed_on: set[int] = set()  # joined to decode, their Withdraw still to come
        self._outstanding: Chunk | None = None
        self._turn = 0

    def hear(self, message: ToPrefill) -> None:
        """Take one message and act on it."""
        match message:
            case Admit(work, outlet):
                self._joiners[work.row] = Joiner(work, outlet, last_turn=self._turn)
                edge = self._pace.largest if self._pace.fixed else 1
                post(self._to.store, stores.Take(work.row, work.prompt, edge))
            case Lease(row):
                if row in self._joiners:
                    self._joiners[row].lease = message
                    self._joiners[row].read = message.length
            case Withdraw(row):
                self._withdraw(row)
            case Chunked():
                self._chunked(message)
            case ChunkFault(row, error):
                self._fault(row, error)
            case Abandoned(row, snapshot):
                self._abandoned(row, snapshot)
            case Cutoff():
                self._cutoff()
            case Closing():
                self.over = True
            case _:
                assert_never(message)
        self._next_turn()
        self._gauges.preparing_rows = len(self._joiners)

    # --- turns ---

    def _next_turn(self) -> None:
        if self._outstanding is not None:
            return
        joiner = self._choose()
        if joiner is None:
            return
        self._turn += 1
        joiner.last_turn = self._turn
        self._outstanding = self._chunk_of(joiner)
        post(self._to.device, self._outstanding)

    def _choose(self) -> Joiner | None:
        ready = [j for j in self._joiners.values() if j.lease is not None and not j.leaving]
        opened = [joiner for joiner in ready if joiner.opened]
        if len(opened) >= self._pace.joiners:
            ready = opened
        if not ready:
            return None
        if self._turn % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            return min(ready, key=lambda joiner: joiner.last_turn)
        return min(ready, key=lambda joiner: joiner.left)

    def _chunk_of(self, joiner: Joiner) -> Chunk:
        left = joiner.left
        if self._pace.fixed:
            count = next_edge(joiner.read, left, self._pace.largest)
        else:
            busy = len(self._joiners) > 1 or bool(self._passed_on)
            seconds = self._pace.stall * (1 if busy else _IDLE_STALLS)
            count = next_chunk(left, self._sizer.size(joiner.read, seconds))
        tokens = joiner.work.prompt[joiner.read : joiner.read + count]
        opening = None
        if not joiner.opened:
            assert joiner.lease is not None
            opening = Opening(joiner.work, joiner.lease.snapshot, joiner.lease.length)
            joiner.opened = True
        return Chunk(joiner.work.row, tokens, count == left, opening)

    def _chunked(self, result: Chunked) -> None:
        chunk, self._outstanding = self._outstanding, None
        assert chunk is not None and chunk.row == result.row
        joiner = self._joiners[result.row]
        self._sizer.observe(len(chunk.tokens), joiner.read, result.seconds)
        joiner.read += len(chunk.tokens)
        self._gauges.prompt_tokens += len(chunk.tokens)
        if chunk.opening is not None:
            post(self._to.store, stores.ReleaseLease(result.row))
        if result.snapshot is not None:
            self._put(joiner, result.snapshot)
        if result.first is not None and not joiner.leaving:
            self._join(joiner, result)

    def _join(self, joiner: Joiner, result: Chunked) -> None:
        row = joiner.work.row
        del self._joiners[row]
        self._passed_on.add(row)
        assert joiner.lease is not None and result.first is not None
        self._gauges.cached_tokens += joiner.lease.length
        post(joiner.outlet, Prepared(joiner.lease.length))
        post(
            self._to.decode,
            decode.Join(joiner.work, joiner.outlet, result.first, result.finish),
        )

    # --- leaving ---

    def _withdraw(self, row: int) -> None:
        joiner = self._joiners.get(row)
        if joiner is None:
            self._passed_on.discard(row)
            post(self._to.decode, decode.Withdraw(row))
            return
        joiner.withdrawn = True
        self._let_go([joiner])

    def _let_go(self, joiners: Iterable[Joiner]) -> None:
        on_device = []
        for joiner in joiners:
            if joiner.leaving:
                continue
            joiner.leaving = True
            post(self._to.store, stores.ReleaseLease(joiner.work.row))
            if joiner.opened:
                on_device.append(joiner.work.row)
            else:
                self._gone(joiner)
        if on_device:
            post(self._to.device, Abandon(tuple(on_device)))

    def _abandoned(self, row: int, snapshot: Snapshot | None) -> None:
        joiner = self._joiners.get(row)
        if joiner is None:  # it had failed meanwhile
            return
        if snapshot is not None:
            self._put(joiner, snapshot)
        self._gone(joiner)

    def _gone(self, joiner: Joiner) -> None:
        row = joiner.work.row
        del self._joiners[row]
        post(self._to.admission, admission.Released(row))
        if joiner.withdrawn:
            post(self._to.decode, decode.Withdraw(row))

    def _fault(self, row: int, error: str) -> None:
        self._outstanding = None
        joiner = self._joiners[row]
        log.error("preparation failed", request=row, error=error)
        post(joiner.outlet, Failed("preparation_failed", error))
        post(self._to.store, stores.ReleaseLease(row))
        self._gone(joiner)

    def _cutoff(self) -> None:
        joiners = list(self._joiners.values())
        for joiner in joiners:
            if not joiner.leaving:
                post(joiner.outlet, Failed("server_shutdown", "the server is shutting down"))
        self._let_go(joiners)
        post(self._to.decode, decode.Cutoff())

    def _put(self, joiner: Joiner, snapshot: Snapshot) -> None:
        post(self._to.store, stores.Put(joiner.work.prompt, snapshot))
