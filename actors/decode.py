"""The decode stepper: which rows run.

Owns: the running rows with all their tokens, the grants of steps.
Takes: Join, Convicted, Displace, Withdraw, Cutoff and Closing from prefill; Stop from emitters; results
from the device.
Sends: Join, Step and Drop to the device; Tokens and Failed to emitters; Put to the store; Recover and
Abandon back to prefill; Released, Displaced, Kept and Departed to admission.
Waited for by: nobody.

Decode grants the device steps ahead, so that the device never waits for Trio between two of them, and
no more than GRANT, so that a slow event loop holds the device back. Stop, Withdraw and Join take effect
before the next step, however many are granted.

A step that fails costs no stream: its rows go back to prefill with all their tokens and come again. The one
that fails there alone is convicted. Faults that nobody is convicted of are the device's own. A row that gives
way to another goes back to admission, and comes again likewise.
"""

from collections import deque
from collections.abc import Callable
from typing import assert_never

import attrs
import structlog
import trio

from motet.channels import admission, device, prefill
from motet.channels import store as stores
from motet.channels.decode import (
    Closing,
    Convicted,
    Cutoff,
    Displace,
    Join,
    Prepared,
    Stop,
    ToDecode,
    Withdraw,
)
from motet.channels.device import (
    Drop,
    Dropped,
    JoinFault,
    RowTokens,
    Snapshot,
    Step,
    StepFault,
    Stepped,
)
from motet.channels.emitter import Failed, ToEmitter, Tokens
from motet.channels.gauges import DecodeGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.request import Work

log = structlog.get_logger()

GRANT = 32
"""Steps granted ahead at most."""
FAULTS = 3
FAULT_WINDOW = 60.0
"""So many step faults that no row is convicted of, within so many seconds, end the engine."""


class DeviceFailing(Exception):
    """Steps fail again and again: the device is not to be trusted with more."""


@attrs.define(eq=False)
class Running:
    """A row that decodes."""

    work: Work
    outlet: Outlet[ToEmitter]
    generated: list[int]
    dropping: bool = False
    """Its Drop is on the way."""
    displacing: bool = False
    """So that another has its place; admission waits for the answer."""
    withdrawn: bool = False
    stopped: bool = False
    """It needs no more tokens."""
    abandoned: bool = False
    """It had left before its Withdraw came, which is with prefill by now, and will come again."""

    @property
    def told(self) -> bool:
        """Whether its emitter is told what it still gives."""
        return not self.dropping or self.comes_again

    @property
    def comes_again(self) -> bool:
        """Whether it goes on after its Drop, when it has a place once more."""
        return self.displacing and not (self.stopped or self.withdrawn)


@attrs.define
class Fault:
    """A step's fault, and which of the rows that it sent back have not yet come again."""

    at: float
    error: str
    away: set[int]


ToAdmission = admission.Released | admission.Displaced | admission.Kept | admission.Departed


@attrs.frozen
class Outlets:
    """Whom decode speaks to."""

    admission: Outlet[ToAdmission]
    prefill: Outlet[prefill.Recover | prefill.Abandon]
    store: Outlet[stores.Put | stores.Closing]
    device: Outlet[device.DecodeCommand]


async def decode(inbox: trio.MemoryReceiveChannel[ToDecode], outlets: Outlets, gauges: DecodeGauges) -> None:
    """Run until prefill has left.

    Raises:
        DeviceFailing: too many steps failed in a short time.
    """
    stepper = Stepper(outlets, gauges, trio.current_time)
    with inbox:
        while not stepper.over:
            stepper.hear(await inbox.receive())
    post(outlets.store, stores.Closing())


class Stepper:
    """The running rows. Every decision is synchronous."""

    def __init__(self, outlets: Outlets, gauges: DecodeGauges, clock: Callable[[], float]) -> None:
        self.over = False
        self._to = outlets
        self._gauges = gauges
        self._clock = clock
        self._rows: dict[int, Running] = {}
        self._granted = 0
        self._away: dict[int, Running] = {}  # being recovered, or displaced: they come again with Join
        self._open_faults: list[Fault] = []
        self._unexplained: deque[float] = deque(maxlen=FAULTS)

    def hear(self, message: ToDecode) -> None:
        """Take one message and act on it."""
        match message:
            case Join():
                self._join(message)
            case Stepped(rows, steps):
                self._granted -= steps
                for new in rows:
                    self._tokens(new)
            case Convicted(row):
                self._convicted(row)
            case Stop(row):
                self._stop(row)
            case Withdraw(row):
                self._withdraw(row)
            case Displace(row):
                self._displace(row)
            case Dropped(row, snapshot):
                self._dropped(row, snapshot)
            case StepFault():
                self._fault(message)
            case JoinFault(rows, error):
                for row in rows:
                    self._fail(row, "join_failed", error)
            case Cutoff():
                self._cutoff()
            case Closing():
                self.over = True
            case _:
                assert_never(message)
        if self._rows and self._granted <= GRANT // 2:
            post(self._to.device, Step(GRANT - self._granted))
            self._granted = GRANT
        self._gauges.active_rows = len(self._rows)

    def _join(self, join: Join) -> None:
        joining = []
        stopped = []
        for prepared in join.rows:
            row = self._first(prepared)
            number = row.work.row
            if prepared.finish is not None:
                post(self._to.admission, admission.Released(number))
                continue
            self._rows[number] = row
            joining.append(number)
            if row.stopped:
                stopped.append(number)
        if joining:
            post(self._to.device, device.Join(tuple(joining)))
        self._drop(stopped)

    def _first(self, prepared: Prepared) -> Running:
        """A row as it comes, for the first time or again."""
        number = prepared.work.row
        row = self._away.pop(number, None) or Running(prepared.work, prepared.outlet, [])
        self._returned(number)
        row.generated.extend(prepared.tokens)
        self._gauges.tokens += len(prepared.tokens)
        if not row.stopped:
            post(row.outlet, Tokens(prepared.tokens, prepared.finish, prepared.logprobs))
        return row

    def _tokens(self, new: RowTokens) -> None:
        running = self._rows[new.row]
        running.generated.extend(new.tokens)
        self._gauges.tokens += len(new.tokens)
        if new.tokens and running.told:
            post(running.outlet, Tokens(new.tokens, new.finish, new.logprobs))
        if new.error is not None and running.told:
            post(running.outlet, Failed("constraint_failed", new.error))
        if new.ends:
            running.stopped = True
            self._gone(running, new.snapshot)

    # --- leaving ---

    def _withdraw(self, row: int) -> None:
        running, away = self._rows.get(row), self._away.get(row)
        if running is not None:
            running.withdrawn = True
            self._drop([row])
        elif away is not None and not away.abandoned:
            away.abandoned = True
            post(self._to.prefill, prefill.Abandon(row))
        else:
            self._away.pop(row, None)
            self._returned(row)
            post(self._to.admission, admission.Departed(row))

    def _displace(self, row: int) -> None:
        running = self._rows.get(row)
        if running is None or running.dropping:
            post(self._to.admission, admission.Kept(row))
            return
        running.displacing = True
        self._drop([row])

    def _stop(self, row: int) -> None:
        for rows in (self._rows, self._away):
            if row in rows:
                rows[row].stopped = True
        self._drop([row])

    def _drop(self, rows: list[int]) -> None:
        running = [row for row in rows if row in self._rows and not self._rows[row].dropping]
        for row in running:
            self._rows[row].dropping = True
        if running:
            post(self._to.device, Drop(tuple(running)))

    def _dropped(self, row: int, snapshot: Snapshot | None) -> None:
        running = self._rows.get(row)
        if running is not None:  # else it had ended before its Drop
            self._gone(running, snapshot)

    def _gone(self, running: Running, snapshot: Snapshot | None) -> None:
        """The device has dropped the row's arrays."""
        row = running.work.row
        del self._rows[row]
        if snapshot is not None:
            tokens = running.work.prompt + tuple(running.generated)
            post(self._to.store, stores.Put(tokens, snapshot))
        if running.comes_again:
            running.dropping = running.displacing = False
            self._away[row] = running
            post(self._to.admission, admission.Displaced(row, tuple(running.generated)))
            return
        post(self._to.admission, admission.Released(row))
        if running.displacing:
            post(self._to.admission, admission.Kept(row))
        if running.withdrawn:
            post(self._to.admission, admission.Departed(row))

    # --- faults ---

    def _fail(self, row: int, code: str, error: str) -> None:
        running = self._rows.get(row)
        if running is None:
            return
        if not running.dropping:
            post(running.outlet, Failed(code, error))
        self._gone(running, None)

    def _fault(self, fault: StepFault) -> None:
        self._granted -= fault.steps
        self._gauges.step_faults += 1
        log.error("step failed", requests=list(fault.rows), error=fault.error)
        back = []
        for number in fault.rows:
            row = self._rows[number]
            if row.dropping:
                self._gone(row, None)
                continue
            self._away[number] = self._rows.pop(number)
            back.append(prefill.Recovering(row.work, row.outlet, tuple(row.generated)))
        self._gauges.recovered_rows += len(back)
        away = {row.work.row for row in back}
        self._open_faults.append(Fault(self._clock(), fault.error, away))
        if back:
            post(self._to.prefill, prefill.Recover(tuple(back)))
        self._close_faults()

    def _convicted(self, row: int) -> None:
        self._away.pop(row, None)
        self._open_faults = [fault for fault in self._open_faults if row not in fault.away]

    def _returned(self, row: int) -> None:
        """A row that was sent back is here again, or has left without being convicted."""
        for fault in self._open_faults:
            fault.away.discard(row)
        self._close_faults()

    def _close_faults(self) -> None:
        for fault in [fault for fault in self._open_faults if not fault.away]:
            self._open_faults.remove(fault)
            self._unexplained.append(fault.at)
            many = len(self._unexplained) == FAULTS
            # In no order: a row that was displaced on its way back closes its fault late.
            if many and max(self._unexplained) - min(self._unexplained) <= FAULT_WINDOW:
                raise DeviceFailing(f"{FAULTS} steps failed within {FAULT_WINDOW:g} s: {fault.error}")

    def _cutoff(self) -> None:
        for running in self._rows.values():
            if not running.dropping:
                post(running.outlet, Failed("server_shutdown", "the server is shutting down"))
        self._drop(list(self._rows))
