"""The registry of resumable streams as its callers see it: to begin a stream, and to take one up again."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from motet.actors.stream import EngineDied, Rows, Stream
from motet.channels import caller
from motet.channels.mailbox import post
from motet.channels.resuming import (
    Begin,
    Cancel,
    Detach,
    Forget,
    Gone,
    Named,
    OpenRow,
    Reader,
    Taken,
    TakeUp,
    ToResuming,
)


class StreamGone(Exception):
    """There is no such stream to take up: it never was, its window is over, or it was let go for others."""


@attrs.frozen
class TakenUp:
    """A stream that was taken up: all its events come again."""

    label: object
    """What its first caller gave for it."""
    sent: int
    """Events that there were already."""
    stream: Stream


class Registry:
    """The callers' side.

    Args:
        outlet: the registry's mailbox.
        death: what ended the engine, if anything did.
    """

    def __init__(
        self, outlet: trio.MemorySendChannel[ToResuming], death: Callable[[], BaseException | None]
    ) -> None:
        self._outlet = outlet
        self._death = death
        self._numbers = itertools.count(1)

    def named(self, name: str) -> Named:
        """Where the emitters of a stream's rows are to speak to."""
        return Named(name, self._outlet)

    @contextlib.asynccontextmanager
    async def begun(self, name: str, label: object, rows: Sequence[OpenRow]) -> AsyncIterator[Stream]:
        """The stream of rows that have just been submitted; to leave the block leaves them to the registry.

        Nothing may be awaited between the start of the first row's emitter and this.

        Raises:
            NotTaken: a row was not queued.
        """
        with self._reader(name) as (reader, events):
            post(self._outlet, Begin(name, label, tuple(rows), reader))
            stream = self._stream(name, reader, events, [row.prompt_tokens for row in rows])
            try:
                await stream.accepted()
            except BaseException:
                post(self._outlet, Forget(name))
                raise
            yield stream

    @contextlib.asynccontextmanager
    async def taken_up(self, name: str) -> AsyncIterator[TakenUp]:
        """A stream from its start.

        Raises:
            StreamGone: it is not there.
            EngineDied: nothing is.
        """
        reply, answer = trio.open_memory_channel[Taken | Gone](1)
        with reply, answer, self._reader(name) as (reader, events):
            try:
                self._outlet.send_nowait(TakeUp(name, reader, reply))
            except trio.BrokenResourceError:  # it has left
                if self._death() is not None:
                    raise EngineDied("the engine has ended") from self._death()
                raise StreamGone(name) from None
            taken = await answer.receive()
            if isinstance(taken, Gone):
                raise StreamGone(name)
            yield TakenUp(taken.label, taken.events, self._stream(name, reader, events, taken.prompt_tokens))

    @contextlib.contextmanager
    def _reader(self, name: str) -> Iterator[tuple[Reader, trio.MemoryReceiveChannel[caller.ToCaller]]]:
        outlet, events = trio.open_memory_channel[caller.ToCaller](float("inf"))
        reader = Reader(next(self._numbers), outlet)
        with events:
            try:
                yield reader, events
            finally:
                post(self._outlet, Detach(name, reader.number))

    def _stream(
        self,
        name: str,
        reader: Reader,
        events: trio.MemoryReceiveChannel[caller.ToCaller],
        prompt_tokens: Sequence[int],
    ) -> Stream:
        rows = Rows()
        for index in range(len(prompt_tokens)):
            rows.opened(index, partial(post, self._outlet, Cancel(name, index, reader.number)))
        return Stream(events, prompt_tokens, rows, self._death)
