"""The registry of resumable streams: it owns their rows, so that a caller may lose its connection.

Owns: the rows of streams whose callers asked for it, every event of these, and who reads them.
Takes: Begin, TakeUp, Detach, Cancel and Forget from callers; Told from emitters; Wanted and Closing from
admission; Drain.
Sends: Withdraw to admission; a stream's events to whoever reads it; Taken or Gone to whoever takes one up.
Waited for by: a caller that takes a stream up, for its answer.

A stream whose reader has left is *detached*. It runs on, and is let go, its rows with it, when its window is
over, when detached rows or what is kept for detached streams exceed their caps, when somebody waits for what
its rows hold, or by a drain: the one that was left first goes first. What has ended is kept for a window as
well, for its reader may have gone with the last events on the way.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import assert_never

import attrs
import structlog
import trio

from motet.channels import admission, caller
from motet.channels.gauges import ResumingGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.resuming import (
    Begin,
    Cancel,
    Closing,
    Detach,
    Drain,
    Forget,
    Gone,
    OpenRow,
    Reader,
    Taken,
    TakeUp,
    Told,
    ToResuming,
    Wanted,
)

log = structlog.get_logger()

_EVENT_BYTES = 200  # an event beside its text, and so much again for each log-probability


@attrs.frozen
class Keeping:
    """What is kept for those that may come back."""

    window: float
    """Seconds from a reader's leaving."""
    rows: int
    """Detached rows that run, at most."""
    nbytes: int
    """Bytes of detached streams' events, at most."""


async def resuming(
    inbox: trio.MemoryReceiveChannel[ToResuming],
    to_admission: Outlet[admission.Withdraw],
    keeping: Keeping,
    gauges: ResumingGauges,
) -> None:
    """Run until admission has left."""
    registry = Resuming(to_admission, keeping, gauges, trio.current_time)
    with inbox:
        try:
            while not registry.over:
                with trio.move_on_at(registry.deadline) as waiting:
                    registry.hear(await inbox.receive())
                if waiting.cancelled_caught:
                    registry.expire()
        finally:
            registry.close()
            with contextlib.suppress(trio.WouldBlock):
                while True:
                    registry.refuse(inbox.receive_nowait())


@attrs.define(eq=False)
class Held:
    """A stream."""

    label: object
    prompt_tokens: tuple[int, ...]
    open: dict[int, OpenRow]
    """The rows that have not ended, by index."""
    reader: Reader | None
    deadline: float = math.inf
    """When it is let go."""
    events: list[caller.ToCaller] = attrs.Factory(list)
    nbytes: int = 0


class Resuming:
    """The registry's state. Every decision is synchronous."""

    def __init__(
        self,
        to_admission: Outlet[admission.Withdraw],
        keeping: Keeping,
        gauges: ResumingGauges,
        clock: Callable[[], float],
    ) -> None:
        self.over = False
        self._to_admission = to_admission
        self._keeping = keeping
        self._gauges = gauges
        self._clock = clock
        self._attached: dict[str, Held] = {}
        self._detached: dict[str, Held] = {}  # in the order in which their readers left
        self._draining = False

    @property
    def deadline(self) -> float:
        """When to ``expire`` next: all windows are equal, so the first to be left is the first."""
        return next(iter(self._detached.values())).deadline if self._detached else math.inf

    def hear(self, message: ToResuming) -> None:
        """Take one message and act on it."""
        match message:
            case Begin(name, label, rows, reader):
                self._attached[name] = Held(
                    label, tuple(row.prompt_tokens for row in rows), dict(enumerate(rows)), reader
                )
            case Told(name, event):
                self._told(name, event)
            case TakeUp():
                self._take_up(message)
            case Detach(name, reader):
                self._detach(name, reader)
            case Cancel(name, index, reader):
                if self._read_by(name, reader) is not None:
                    what = caller.Failed(index, "request_cancelled", "the request was cancelled")
                    self._told(name, what)
            case Forget(name):
                self._let_go(name)
            case Wanted():
                self._yield_one()
            case Drain():
                self._draining = True
                self._let_all_go(list(self._detached))
            case Closing():
                self.over = True
            case _:
                assert_never(message)
        self._within_caps()
        self._gauge()

    def expire(self) -> None:
        """Let the streams go whose window is over."""
        now = self._clock()
        self._let_all_go([name for name, held in self._detached.items() if held.deadline <= now])
        self._gauge()

    def close(self) -> None:
        """Nothing more is told to anyone."""
        for held in self._attached.values():
            if held.reader is not None:
                held.reader.outlet.close()

    def refuse(self, message: ToResuming) -> None:
        """Answer who would wait for it; nothing else is done any more."""
        if isinstance(message, TakeUp):
            self._gone(message)

    def _held(self, name: str) -> Held | None:
        return self._attached.get(name) or self._detached.get(name)

    def _read_by(self, name: str, reader: int) -> Held | None:
        """The stream, if it is this reader's still."""
        held = self._attached.get(name)
        return held if held and held.reader and held.reader.number == reader else None

    def _told(self, name: str, event: caller.ToCaller) -> None:
        held = self._held(name)
        if held is None or event.index not in held.open:  # it was let go meanwhile
            return
        if not isinstance(event, caller.Accepted | caller.Rejected):
            held.events.append(event)
            held.nbytes += _size(event)
        if isinstance(event, caller.Finished | caller.Failed):
            self._withdraw(held, event.index)
        if held.reader is not None:
            post(held.reader.outlet, event)

    def _take_up(self, message: TakeUp) -> None:
        held = self._held(message.name)
        if held is None:
            self._gone(message)
            return
        if held.reader is not None:  # its connection may be dead without anyone having seen it yet
            for index in held.open:
                what = caller.Failed(index, "stream_taken_up", "the stream was taken up elsewhere")
                post(held.reader.outlet, what)
            held.reader.outlet.close()
        self._detached.pop(message.name, None)
        self._attached[message.name] = held
        held.reader, held.deadline = message.reader, math.inf
        post(message.reply, Taken(held.label, held.prompt_tokens, len(held.events)))
        for event in held.events:
            post(held.reader.outlet, event)
        self._gauges.taken_up += 1
        log.info("stream taken up", stream=message.name, events=len(held.events))

    def _gone(self, message: TakeUp) -> None:
        message.reader.outlet.close()
        post(message.reply, Gone())

    def _detach(self, name: str, reader: int) -> None:
        held = self._read_by(name, reader)
        if held is None or held.reader is None:
            return
        held.reader.outlet.close()
        held.reader, held.deadline = None, self._clock() + self._keeping.window
        self._detached[name] = self._attached.pop(name)
        if self._draining:
            self._let_go(name)

    def _within_caps(self) -> None:
        while self._running() > self._keeping.rows:
            self._yield_one()
        while self._detached and self._nbytes() > self._keeping.nbytes:
            self._let_go(next(iter(self._detached)))

    def _running(self) -> int:
        return sum(len(held.open) for held in self._detached.values())

    def _nbytes(self) -> int:
        return sum(held.nbytes for held in self._detached.values())

    def _yield_one(self) -> None:
        """Let the detached stream go that was left first, of those with rows that run."""
        name = next((name for name, held in self._detached.items() if held.open), None)
        if name is not None:
            self._let_go(name)

    def _let_all_go(self, names: list[str]) -> None:
        for name in names:
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        held = self._attached.pop(name, None) or self._detached.pop(name, None)
        if held is None:
            return
        if held.open:
            log.info("stream let go", stream=name, rows=[row.number for row in held.open.values()])
            self._gauges.let_go += 1
        for index in list(held.open):
            self._withdraw(held, index)
        if held.reader is not None:
            held.reader.outlet.close()

    def _withdraw(self, held: Held, index: int) -> None:
        row = held.open.pop(index)
        row.outlet.close()
        post(self._to_admission, admission.Withdraw(row.number))

    def _gauge(self) -> None:
        self._gauges.attached = len(self._attached)
        self._gauges.detached = len(self._detached)
        self._gauges.detached_rows = self._running()
        self._gauges.bytes = sum(held.nbytes for held in self._all())

    def _all(self) -> Iterator[Held]:
        yield from self._attached.values()
        yield from self._detached.values()


def _size(event: caller.ToCaller) -> int:
    match event:
        case caller.Text() | caller.Reasoning():
            likely = sum(1 + len(logprob.top) for logprob in event.logprobs)
            return len(event.text) + _EVENT_BYTES * (1 + likely)
        case caller.ToolCall():
            return len(event.arguments) + _EVENT_BYTES
        case _:
            return _EVENT_BYTES
