"""A caller's side of its rows: their events as they come, and their withdrawal."""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from motet.channels import caller


class EngineDied(Exception):
    """The engine has ended: no row of it can go on, and no new one can begin."""


class NotTaken(Exception):
    """The request was not taken and may be tried again: ``code`` is 'busy' or 'draining'."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


Event = caller.Text | caller.Reasoning | caller.ToolCall | caller.Finished | caller.Failed


class Rows:
    """A caller's open rows. Each is withdrawn once: when its end has been read, or when the caller leaves.

    Not only at the caller's end: a finished row holds its seat until then, and one caller may open more rows
    than there are seats.
    """

    def __init__(self) -> None:
        self._open: dict[int, Callable[[], None]] = {}

    def opened(self, index: int, withdraw: Callable[[], None]) -> None:
        """A row is open; ``withdraw`` lets it go."""
        self._open[index] = withdraw

    def withdraw(self, index: int) -> None:
        """Let one row go, if that has not been done."""
        withdraw = self._open.pop(index, None)
        if withdraw is not None:
            withdraw()

    def withdraw_all(self) -> None:
        """Let the rest go."""
        for index in list(self._open):
            self.withdraw(index)


class Stream:
    """The events of one or more rows, as they come; each row's last is Finished or Failed."""

    def __init__(
        self,
        events: trio.MemoryReceiveChannel[caller.ToCaller],
        prompt_tokens: Sequence[int],
        rows: Rows,
        death: Callable[[], BaseException | None],
    ) -> None:
        self._events = events
        self._open = len(prompt_tokens)
        self._unfinished = set(range(self._open))
        self._cancelled = False
        self.prompt_tokens = prompt_tokens
        """Tokens of each row's prompt."""
        self._rows = rows
        self._death = death
        self._early: deque[caller.ToCaller] = deque()

    async def accepted(self) -> None:
        """Wait until every row is queued.

        Raises:
            NotTaken: one was not.
        """
        waiting = self._open
        while waiting:
            match event := await self._receive():
                case caller.Accepted():
                    waiting -= 1
                case caller.Rejected():
                    raise NotTaken(event.code)
                case _:
                    self._early.append(event)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Event:
        """The next event.

        Raises:
            EngineDied: the engine ended before the rows did.
        """
        if not self._early and not self._open:
            raise StopAsyncIteration
        event = self._early.popleft() if self._early else await self._receive()
        return self._counted(event)

    def ready(self) -> list[Event]:
        """The events that are there already, without waiting."""
        events: list[Event] = []
        while self._early or self._open:
            try:
                event = self._early.popleft() if self._early else self._events.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            events.append(self._counted(event))
        return events

    def cancel(self) -> None:
        """End the rows that still run: each fails with 'request_cancelled'. Any task may do it.

        What was generated until then can still be read before that.
        """
        self._cancelled = True
        self._rows.withdraw_all()

    def _counted(self, event: caller.ToCaller) -> Event:
        assert not isinstance(event, caller.Accepted | caller.Rejected)
        if isinstance(event, caller.Finished | caller.Failed):
            self._open -= 1
            self._unfinished.remove(event.index)
            self._rows.withdraw(event.index)
        return event

    async def _receive(self) -> caller.ToCaller:
        try:
            return await self._events.receive()
        except trio.EndOfChannel:
            if self._cancelled:
                return caller.Failed(min(self._unfinished), "request_cancelled", "the request was cancelled")
            raise EngineDied("the engine has ended") from self._death()
