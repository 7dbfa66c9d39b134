"""The device: the one thread that touches the model, and every array that lives on it.

Owns: the model, rows and snapshots (through its Executor), on a thread that is never replaced.
Takes: commands from prefill, decode, the store and the persister, through a queue that nobody waits to put
into.
Sends: results into the mailboxes of prefill, decode and the persister.
Waited for by: nobody; the root waits for its end.

Order: commands run as they come, but granted steps alternate with them: while a group runs, at most
one command that computes comes between two of its steps. Before such a command the step in flight is
settled and its tokens are delivered, so a late error is always blamed on its own step. A join of long rows
is done in parts, with a step between two of them.

Tokens go to Trio when the next step has been handed to the device, so that the two threads do not fight
for the interpreter lock; and when steps are faster than REPORT_EVERY, several together: waking Trio for
each would cost a fast model more than it gives a reader.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, assert_never

import attrs
import outcome
import structlog
import trio

from motet.actors.executor import Computing, Executor, Result
from motet.actors.faults import StepError, describe
from motet.channels.decode import ToDecode
from motet.channels.device import (
    Abandoned,
    Chunk,
    Chunked,
    Command,
    Discard,
    Dropped,
    Exported,
    Forget,
    JoinFault,
    Restored,
    RowTokens,
    Shutdown,
    Step,
    StepFault,
    Stepped,
)
from motet.channels.gauges import DeviceGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.persister import ToPersister
from motet.channels.prefill import ToPrefill
from motet.engine.model import release_device

log = structlog.get_logger()

REPORT_EVERY = 0.04
"""Seconds within which tokens are reported together: a reader gets text 25 times a second."""

_POLL = 1.0  # seconds between looks at a command's age
_LAST_COMMAND = 10.0  # seconds that a cancelled device waits for its thread

Waiting: TypeAlias = Computing | Forget | Discard | Shutdown

Log: TypeAlias = Callable[[Command], None]
"""Called on the device thread with each command before it runs, granted steps one by one."""


class DeviceDied(Exception):
    """The device thread ended on its own, or a command ran past the time allowed."""


class DevicePort:
    """Where the other actors put commands. Never full: each of them has few outstanding."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send_nowait(self, value: Command, /) -> None:
        """Queue a command."""
        self.queue.put(value)


@attrs.define
class Watch:
    """What the thread is doing, written by it and read by the watch; and the order to stop."""

    since: float | None = None
    command: str = ""
    stop: bool = False


class DeviceLoop:
    """The device thread's loop: what to run next, and when to report."""

    def __init__(
        self,
        executor: Executor,
        port: DevicePort,
        to_prefill: Outlet[ToPrefill],
        to_decode: Outlet[ToDecode],
        to_persister: Outlet[ToPersister],
        gauges: DeviceGauges,
        watch: Watch,
        *,
        clock: Callable[[], float] = time.perf_counter,
        log_command: Log | None = None,
    ) -> None:
        self._executor = executor
        self._queue = port.queue
        self._to_prefill = to_prefill
        self._to_decode = to_decode
        self._to_persister = to_persister
        self._gauges = gauges
        self._clock = clock
        self._log = log_command
        self._watch = watch
        self._known: set[tuple[str, int]] = set()
        self._granted = 0
        self._used = 0  # granted steps not yet reported
        self._in_flight = False
        self._collected: dict[int, list[RowTokens]] = {}
        self._ended = False
        self._reported = 0.0
        self._waiting: deque[Waiting] = deque()

    def run(self) -> None:
        """Run until Shutdown, or until the watch says stop."""
        stepped_last = True
        while not self._watch.stop:
            self._take_mail()
            idle = not self._waiting
            steps_due = self._granted > 0 and self._executor.width > 0
            if steps_due and (not stepped_last or idle):
                self._step()
                stepped_last = True
                continue
            if idle:
                self._settle()
                self._report()
                self._take(self._queue.get())
                continue
            command = self._waiting.popleft()
            match command:
                case Forget(handles):
                    self._executor.snapshots.forget(handles)
                case Discard(number):
                    self._executor.snapshots.discard(number)
                case Shutdown():
                    return
                case _:
                    self._compute(command)
                    stepped_last = False

    def _take_mail(self) -> None:
        while not self._queue.empty():
            self._take(self._queue.get())

    def _take(self, command: Command) -> None:
        # Grants count at once: a join in parts needs steps between them, and stands before the grants.
        if isinstance(command, Step):
            self._granted += command.count
        else:
            self._waiting.append(command)

    # --- steps ---

    def _step(self) -> None:
        self._note(Step(1))
        width = self._executor.width
        self._begin("step", width)
        outcome = self._executor.step(self._report_if_due)
        self._end("step", width)
        self._granted -= 1
        self._used += 1
        self._gauges.steps += 1
        self._in_flight = self._executor.width > 0
        self._collect(outcome)

    def _report_if_due(self) -> None:
        # Called when the next step's graph is built: while the device computes, Trio's thread has
        # the interpreter lock to itself. A report at any other time makes the two fight for it.
        # With half of the grants used, more are asked for: the device must not wait for them.
        due = self._clock() - self._reported >= REPORT_EVERY
        if due or self._ended or self._used > self._granted:
            self._report()

    def _settle(self) -> None:
        if self._in_flight:
            self._in_flight = False
            self._collect(self._executor.settle())

    def _collect(self, outcome: list[RowTokens] | StepError) -> None:
        if isinstance(outcome, StepError):
            self._in_flight = False
            self._report()
            used, self._used = self._used, 0
            self._deliver(self._to_decode, StepFault(outcome.rows, used, outcome.error))
            self._measure()
            return
        for new in outcome:
            self._collected.setdefault(new.row, []).append(new)
            self._ended = self._ended or new.ends

    def _report(self) -> None:
        if not self._collected and not (self._used and not self._in_flight):
            return
        rows, self._collected = tuple(map(_together, self._collected.values())), {}
        used, self._used = self._used, 0
        self._ended = False
        self._reported = self._clock()
        self._measure()
        self._deliver(self._to_decode, Stepped(rows, used))

    # --- other commands ---

    def _compute(self, command: Computing) -> None:
        self._settle()
        self._report()
        self._note(command)
        size = sum(len(part.tokens) for part in command.parts) if isinstance(command, Chunk) else 0
        self._begin(type(command).__name__, size)
        results = self._executor.execute(command)
        self._end(type(command).__name__, size)
        if results is None:
            self._waiting.appendleft(command)
            return
        if isinstance(command, Chunk):
            self._gauges.chunks += 1
        self._measure()
        for result in results:
            self._deliver_result(result)

    def _deliver_result(self, result: Result) -> None:
        match result:
            case Chunked() | Abandoned():
                self._deliver(self._to_prefill, result)
            case JoinFault() | Dropped():
                self._deliver(self._to_decode, result)
            case Exported() | Restored():
                self._deliver(self._to_persister, result)
            case _:
                assert_never(result)

    def _deliver(self, outlet: Outlet[Any], message: object) -> None:
        post(outlet, message)

    def _note(self, command: Command) -> None:
        if self._log is not None:
            self._log(command)

    def _measure(self) -> None:
        self._gauges.kv_bytes = self._executor.kv_bytes()
        self._gauges.queue = self._queue.qsize() + len(self._waiting)

    # --- the watch's view ---

    def _begin(self, kind: str, size: int) -> None:
        # The first of its kind and size may compile kernels for minutes: not watched.
        if (kind, size) in self._known:
            self._watch.command = kind
            self._watch.since = self._clock()

    def _end(self, kind: str, size: int) -> None:
        self._watch.since = None
        self._known.add((kind, size))


def _together(told: list[RowTokens]) -> RowTokens:
    """What several steps told of a row. Only the last can have ended it."""
    tokens = tuple(token for one in told for token in one.tokens)
    logprobs = tuple(logprob for one in told for logprob in one.logprobs)
    return attrs.evolve(told[-1], tokens=tokens, logprobs=logprobs)


@attrs.frozen
class FromThread:
    """An outlet that the device thread posts into: the message is handed over on Trio's thread."""

    token: trio.lowlevel.TrioToken
    outlet: Outlet[Any]

    def send_nowait(self, value: Any, /) -> None:
        """Hand a message to Trio; without effect when the run is over."""
        with contextlib.suppress(trio.RunFinishedError):
            self.token.run_sync_soon(post, self.outlet, value)


T = TypeVar("T")


async def device(
    build: Callable[[], tuple[DeviceLoop, T]],
    port: DevicePort,
    watch: Watch,
    *,
    timeout: float,  # noqa: ASYNC109 - a bound on each command, not on this call
    task_status: trio.TaskStatus[T] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the device thread until Shutdown.

    Args:
        build: makes the loop, on the device thread: there the model is loaded and tested. What it
            returns beside the loop is this task's start value.
        port: the loop's queue.
        watch: the loop's watch.
        timeout: seconds that one command may take.

    Raises:
        DeviceDied: the thread ended on its own, or a command took longer.
        Exception: what ``build`` raised.
    """
    thread = _Thread(build, trio.lowlevel.current_trio_token())
    thread.start()
    try:
        await thread.built.wait()
        if thread.start_value is not None:
            task_status.started(thread.start_value.unwrap())
        while not thread.over.is_set():
            with trio.move_on_after(_POLL):
                await thread.over.wait()
            since = watch.since
            if since is not None and time.perf_counter() - since > timeout:
                raise DeviceDied(f"a {watch.command} command ran for more than {timeout:g} s")
    finally:
        watch.stop = True
        port.send_nowait(Shutdown())
        # One command at most is still running; if it hangs, the daemon thread is left behind.
        with trio.move_on_after(_LAST_COMMAND, shield=True):
            await thread.over.wait()
    thread.raise_if_it_failed()


class _Thread(Generic[T]):
    """The OS thread: builds the loop, runs it, frees everything, tells its end."""

    def __init__(self, build: Callable[[], tuple[DeviceLoop, T]], token: trio.lowlevel.TrioToken) -> None:
        self._build = build
        self._token = token
        self._thread = threading.Thread(target=self._main, name="motet-device", daemon=True)
        self.built = trio.Event()
        self.over = trio.Event()
        self.start_value: outcome.Value[T] | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def raise_if_it_failed(self) -> None:
        """Join the ended thread; raise what ``build`` raised, or DeviceDied."""
        self._thread.join()
        if self._error is not None and self.start_value is None:
            raise self._error
        if self._error is not None:
            raise DeviceDied(f"the device thread ended: {describe(self._error)}")

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as error:  # the thread's end is told, whatever it was
            log.error("device thread failed", exc_info=True)
            # The frames of a traceback would keep the model alive past release_device().
            self._error = error.with_traceback(None)
            self._error.__context__ = None
        release_device()
        self._tell(self.built)
        self._tell(self.over)

    def _run(self) -> None:
        loop, value = self._build()
        self.start_value = outcome.Value(value)
        self._tell(self.built)
        loop.run()

    def _tell(self, event: trio.Event) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(event.set)
