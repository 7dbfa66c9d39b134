"""The prefill cohort: rows whose prompts are being read.

Owns: the joiners, and which of them reads next.
Takes: Admit, Displace, Withdraw, Cutoff and Closing from admission; Recover and Abandon from decode; Lease
from the store; results from the device.
Sends: Take, ReleaseLease and Put to the store; Chunk and Abandon to the device; Join, Convicted, Displace,
Withdraw, Cutoff and Closing to decode; Released, Displaced and Kept to admission; Prepared and Failed to
emitters.
Waited for by: nobody. It waits for its inbox alone, with at most one Chunk outstanding.

Who reads next, and how far, is decided chunk by chunk in turns.py; who waits for another's prefix in
sharing.py; how long the first waits for company in gathering.py.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

import attrs
import structlog
import trio

from motet.actors.chunks import ChunkSizer, next_edge
from motet.actors.gathering import Gathering
from motet.actors.joiner import Joiner
from motet.actors.pace import Pace
from motet.actors.sharing import Sharing
from motet.actors.turns import OLDEST_EVERY, next_gang, share
from motet.channels import admission, decode
from motet.channels import prefill as own
from motet.channels import store as stores
from motet.channels.device import (
    Abandon,
    Abandoned,
    Chunk,
    Chunked,
    Opening,
    Part,
    PartRead,
    PrefillCommand,
    Snapshot,
)
from motet.channels.emitter import Failed, Prepared
from motet.channels.gauges import PrefillGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.prefill import (
    Admit,
    Closing,
    Cutoff,
    Displace,
    Lease,
    Recover,
    Recovering,
    ToPrefill,
    Withdraw,
)

log = structlog.get_logger()

_IDLE_STALLS = 1.5  # a chunk's time, in stall targets, when nobody runs and one prompt is read
_GANG_STALLS = 5  # likewise, when several like it are: then more of them get their due with each


ToStore = stores.Take | stores.ReleaseLease | stores.Put | stores.Closing
ToDecode = decode.Join | decode.Convicted | decode.Displace | decode.Withdraw | decode.Cutoff | decode.Closing


@attrs.frozen
class Outlets:
    """Whom the cohort speaks to."""

    admission: Outlet[admission.Released | admission.Displaced | admission.Kept]
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
    cohort = Cohort(outlets, pace, gauges, trio.current_time)
    with inbox:
        while not cohort.over:
            with trio.move_on_at(cohort.gathering.until) as waiting:
                cohort.hear(await inbox.receive())
            if waiting.cancelled_caught:
                cohort.go_on()
    post(outlets.store, stores.Closing())
    post(outlets.decode, decode.Closing())


class Cohort:
    """The joiners. Every decision is synchronous."""

    def __init__(
        self, outlets: Outlets, pace: Pace, gauges: PrefillGauges, clock: Callable[[], float]
    ) -> None:
        self.over = False
        self.gathering = Gathering()
        """When to ``go_on``."""
        self._clock = clock
        self._to = outlets
        self._pace = pace
        self._gauges = gauges
        self._sizer = ChunkSizer(pace.forward_seconds, pace.token_seconds, pace.largest, pace.shape_seconds)
        self._joiners: dict[int, Joiner] = {}
        self._passed_on: set[int] = set()  # joined to decode, their Withdraw still to come
        self._outstanding: Chunk | None = None
        self._turn = 0
        self._cut_off = False
        self._sharing = Sharing(pace.cuts)

    def hear(self, message: ToPrefill) -> None:
        """Take one message and act on it."""
        match message:
            case Admit(work, outlet, generated):
                self._enter(Joiner(work, outlet, generated))
            case Recover(rows):
                self._recover(rows)
            case own.Abandon(row):
                self._withdraw(row)
            case Lease(row):
                if row in self._joiners:
                    self._leased(self._joiners[row], message)
            case Withdraw(row):
                self._withdraw(row)
            case Displace(row):
                self._displace(row)
            case Chunked():
                self._chunked(message)
            case Abandoned(row, snapshot):
                self._abandoned(row, snapshot)
            case Cutoff():
                self._cutoff()
            case Closing():
                self.over = True
            case _:
                assert_never(message)
        if not self.gathering.waiting:
            self._next_turn()
        self._gauges.preparing_rows = len(self._joiners)

    def _enter(self, joiner: Joiner) -> None:
        self.gathering.another(self._clock())
        joiner.last_turn = self._turn
        self._joiners[joiner.work.row] = joiner
        edge = self._pace.largest if self._pace.fixed else 1
        namespace = self._pace.namespace
        post(self._to.store, stores.Take(joiner.work.row, joiner.tokens, edge, namespace))

    def _recover(self, rows: tuple[Recovering, ...]) -> None:
        for row in rows:
            self._passed_on.discard(row.work.row)
            self._enter(Joiner(row.work, row.outlet, row.generated))
        if self._cut_off:
            self._cutoff()

    def _leased(self, joiner: Joiner, lease: Lease) -> None:
        joiner.asked = False
        joiner.read = joiner.reach = lease.length
        self.gathering.came(joiner.work.row)
        if joiner.displaced:
            self._let_go([joiner])
            return
        if self._keeps and self._sharing.wait(joiner, self._others(joiner)):
            post(self._to.store, stores.ReleaseLease(joiner.work.row))
            return
        joiner.lease = lease
        if self._keeps:
            joiner.stops.update(b for b in joiner.work.boundaries if b > joiner.read)
        idle = not self._passed_on and not any(other.opened for other in self._joiners.values())
        if idle and not self.gathering.waiting and not self._pace.fixed:
            self.gathering.begin(self._clock(), self._sizer.seconds(joiner.left, joiner.read))

    @property
    def _keeps(self) -> bool:
        return self._pace.keeps and not self._pace.fixed

    def _others(self, joiner: Joiner) -> list[Joiner]:
        return [other for other in self._joiners.values() if other is not joiner]

    def _wake(self, rows: list[int]) -> None:
        """Rows that waited for another's prefix look what the store has now."""
        woken = [row for row in rows if not self._joiners[row].leaving]
        for row in woken:
            self._joiners[row].asked = True
            tokens, namespace = self._joiners[row].tokens, self._pace.namespace
            post(self._to.store, stores.Take(row, tokens, namespace=namespace))
        self.gathering.begin_for(woken, self._clock())

    def go_on(self) -> None:
        """The wait for company is over."""
        self.gathering.over()
        self._next_turn()

    # --- turns ---

    def _next_turn(self) -> None:
        if self._outstanding is not None:
            return
        ready = [j for j in self._joiners.values() if j.lease is not None and not j.leaving]
        opened = [joiner for joiner in ready if joiner.opened]
        if len(opened) >= self._pace.joiners:
            ready = opened
        if not ready:
            return
        self._turn += 1
        shares = self._choose(ready)
        room = self._pace.joiners - len(opened)
        fresh = [joiner for joiner, _ in shares if not joiner.opened][: max(room, 0)]
        shares = [(joiner, count) for joiner, count in shares if joiner.opened or joiner in fresh]
        self._outstanding = Chunk(tuple(itertools.starmap(self._part, self._stopped(shares))))
        post(self._to.device, self._outstanding)

    def _stopped(self, shares: list[tuple[Joiner, int]]) -> list[tuple[Joiner, int]]:
        """The shares, none past its joiner's next stop."""
        stopped = [(joiner, min(count, joiner.to_stop)) for joiner, count in shares]
        if self._pace.padded:
            return stopped
        least = min(count for _, count in stopped)
        return [(joiner, least) for joiner, _ in stopped]

    def _choose(self, ready: list[Joiner]) -> list[tuple[Joiner, int]]:
        if self._pace.fixed:
            joiner = min(ready, key=lambda joiner: joiner.left)
            count = next_edge(joiner.read, joiner.left, self._pace.largest)
            return [(joiner, min(count, joiner.left - 1))]
        forward = self._sizer.forward_tokens(min(joiner.read for joiner in ready))
        gang = next_gang(ready, oldest=self._turn % OLDEST_EVERY == 0, forward=forward)
        if not self._pace.together:
            gang = gang[:1]
        depth, stall = gang[0].read, self._pace.stall
        split = partial(share, gang, forward=forward, padded=self._pace.padded)
        if self._passed_on or len(gang) < len(ready):
            shares = split(self._sizer.size(depth, stall))
            if any(count == joiner.left - 1 for joiner, count in shares):
                # The forward of the last tokens comes behind.
                shares = split(self._sizer.size(depth, stall - self._pace.forward_seconds))
            return shares
        if len(gang) == 1:
            return split(self._sizer.size(depth, _IDLE_STALLS * stall))
        return split(self._sizer.tokens(depth, _GANG_STALLS * stall))

    def _part(self, joiner: Joiner, count: int) -> Part:
        """The joiner's share of a chunk, whose forward reads ``count`` tokens of it."""
        joiner.last_turn = self._turn
        last = count == joiner.left - 1
        stop = joiner.read + count
        keep = stop in joiner.stops or (joiner.publish and not last)
        joiner.publish = False
        joiner.reach = stop + last
        tokens = joiner.tokens[joiner.read : joiner.read + count + last]
        opening = None
        if not joiner.opened:
            assert joiner.lease is not None
            opening = Opening(joiner.work, joiner.lease.snapshot, joiner.lease.length, joiner.generated)
            joiner.opened = True
        return Part(joiner.work.row, tokens, last, opening, keep)

    def _chunked(self, result: Chunked) -> None:
        chunk, self._outstanding = self._outstanding, None
        assert chunk is not None
        joiners = [self._joiners[part.row] for part in chunk.parts]
        tokens = len(chunk.parts) * max(len(part.reading) for part in chunk.parts)
        if tokens:
            depth = sum(joiner.read for joiner in joiners) // len(joiners)
            self._sizer.observe(tokens, depth, result.seconds)
        joining = []
        for joiner, part, read in zip(joiners, chunk.parts, result.parts, strict=True):
            joiner.read += len(part.tokens)
            self._gauges.prompt_tokens += len(part.tokens)
            if part.opening is not None:
                post(self._to.store, stores.ReleaseLease(part.row))
            if read.kept is not None:
                self._put(joiner.tokens, read.kept)
            self._wake(self._sharing.reached(part.row, joiner.read))
            if read.error is not None:
                self._fault(joiner, read.error)
            elif read.tokens:
                joining.append((joiner, read))
        self._join(joining)

    def _join(self, ended: list[tuple[Joiner, PartRead]]) -> None:
        """Pass on the rows whose prompts have ended, those that go on as one batch."""
        joining = []
        for joiner, read in ended:
            if read.snapshot is not None:
                self._put(joiner.tokens + read.tokens, read.snapshot)
            if joiner.leaving:
                joiner.drawn = read.tokens
                continue
            row = joiner.work.row
            del self._joiners[row]
            self._passed_on.add(row)
            self._wake(self._sharing.left(row))
            assert joiner.lease is not None
            self._gauges.cached_tokens += joiner.lease.length
            if not joiner.generated:
                post(joiner.outlet, Prepared(joiner.lease.length))
            joining.append(
                decode.Prepared(joiner.work, joiner.outlet, read.tokens, read.finish, read.logprobs)
            )
        if joining:
            post(self._to.decode, decode.Join(tuple(joining)))

    # --- leaving ---

    def _withdraw(self, row: int) -> None:
        joiner = self._joiners.get(row)
        if joiner is None:
            self._passed_on.discard(row)
            post(self._to.decode, decode.Withdraw(row))
            return
        joiner.withdrawn = True
        self._let_go([joiner])

    def _displace(self, row: int) -> None:
        joiner = self._joiners.get(row)
        if joiner is None:
            self._passed_on.discard(row)
            post(self._to.decode, decode.Displace(row))
        elif joiner.leaving:
            post(self._to.admission, admission.Kept(row))
        else:
            joiner.displaced = True
            if not joiner.asked:  # else the answer would meet the row when it has come again
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
            self._put(joiner.tokens + joiner.drawn, snapshot)
        self._gone(joiner)

    def _gone(self, joiner: Joiner) -> None:
        row = joiner.work.row
        del self._joiners[row]
        self.gathering.came(row)
        self._wake(self._sharing.left(row))
        if joiner.displaced and not (joiner.withdrawn or joiner.failed):
            post(self._to.admission, admission.Displaced(row, joiner.generated))
            return
        post(self._to.admission, admission.Released(row))
        if joiner.displaced:
            post(self._to.admission, admission.Kept(row))
        if joiner.withdrawn:
            post(self._to.decode, decode.Withdraw(row))

    def _fault(self, joiner: Joiner, error: str) -> None:
        row = joiner.work.row
        joiner.failed = True
        log.error("preparation failed", request=row, error=error, recovering=bool(joiner.generated))
        if joiner.generated:
            post(joiner.outlet, Failed("step_failed", error))
            post(self._to.decode, decode.Convicted(row))
        else:
            post(joiner.outlet, Failed("preparation_failed", error))
        post(self._to.store, stores.ReleaseLease(row))
        self._gone(joiner)

    def _cutoff(self) -> None:
        joiners = list(self._joiners.values())
        for joiner in joiners:
            if not joiner.leaving:
                joiner.failed = True
                post(joiner.outlet, Failed("server_shutdown", "the server is shutting down"))
        self._let_go(joiners)
        if not self._cut_off:
            post(self._to.decode, decode.Cutoff())
        self._cut_off = True

    def _put(self, tokens: tuple[int, ...], snapshot: Snapshot) -> None:
        post(self._to.store, stores.Put(tokens, snapshot))
