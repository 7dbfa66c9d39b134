"""The body of a streamed response: server-sent events from a stream of the engine.

A class and not a generator: nothing to close, nothing half-started. It never raises: a failure after the
headers is an error event, and the stream ends as any other.
"""

import json
from types import TracebackType
from typing import Any, Protocol, Self

import trio
from quart.wrappers.response import ResponseBody

from motet import EngineDied, Event, Failed, Stream

KEEP_ALIVE = 5.0
"""Seconds without an event after which a comment is sent: it shows the client that the server is there,
and the server whether the client is."""

COMMENT = ": waiting\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# JSON need not escape these; but clients that read lines as str.splitlines does end one there.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def compact(value: Any) -> str:
    """JSON on one line, whatever a client takes for a line's end."""
    said = _encode(value)
    return said if said.isascii() else said.translate(_LINE_ENDS)


class Writer(Protocol):
    """How one API writes a response."""

    def opening(self) -> str:
        """What a stream begins with."""

    def event(self, event: Event) -> str:
        """An event of a row."""

    def closing(self) -> str:
        """What a stream ends with, also after a failure."""


class Events(ResponseBody):
    """Iterates over what is to be written, events that are ready together in one piece.

    Args:
        stream: where the events come from.
        answer: how they are written.
        waiting: what is written while nothing happens.
    """

    def __init__(self, stream: Stream, answer: Writer, waiting: str = COMMENT) -> None:
        self._stream = stream
        self._answer = answer
        self._waiting = waiting
        self._begun = False
        self._over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            return self._answer.opening().encode()
        return (await self._next()).encode()

    async def _next(self) -> str:
        try:
            with trio.move_on_after(KEEP_ALIVE) as waiting:
                first = await anext(self._stream)
            if waiting.cancelled_caught:
                return self._waiting
            events = [first, *self._stream.ready()]
            return "".join(map(self._answer.event, events))
        except StopAsyncIteration:
            self._over = True
            return self._answer.closing()
        except EngineDied:
            self._over = True
            died = Failed(0, "engine_died", "the engine has failed")
            return self._answer.event(died) + self._answer.closing()
