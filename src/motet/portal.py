"""The engine for code that does not run Trio: a thread of its own, and blocking calls into it.

with motet.open_engine_sync("path or hub name") as engine:
    with engine.generate("Once upon a time") as events:
        for event in events:
            ...
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import trio

from motet.actors.engine import Engine
from motet.actors.intake import Prompt
from motet.actors.stream import EngineDied, Event
from motet.actors.system import Load, Settings, open_system
from motet.channels.caller import Failed, Finished
from motet.engine import model as models


class _Over:
    """Behind a row's last message."""


_Message = Event | BaseException | None | _Over  # None: accepted


class EngineThread:
    """An engine on its own thread. Made by ``open_engine_sync``; not to be used in a forked child."""

    def __init__(self, load: Load, settings: Settings) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._engine: Engine | None = None
        self._calls: trio.Nursery | None = None
        self._stop: trio.Event | None = None
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._main, args=(load, settings), name="motet-portal", daemon=True
        )
        self._thread.start()
        error = self._ready.get()
        if error is not None:
            self._thread.join()
            raise error

    def _main(self, load: Load, settings: Settings) -> None:
        try:
            trio.run(self._run, load, settings)
        except BaseException as error:  # told to the thread that waits, or kept for close()
            self._error = error
            self._ready.put(error)

    async def _run(self, load: Load, settings: Settings) -> None:
        async with open_system(load, settings) as engine:
            self._engine, self._stop = engine, trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as self._calls:
                self._ready.put(None)
                await self._stop.wait()
                self._calls.cancel_scope.cancel(reason="the engine is being closed")

    @contextlib.contextmanager
    def generate(self, prompt: Prompt, **options: Any) -> Iterator[Iterator[Event]]:
        """As Engine.generate, blocking: yields an iterator of events; leaving the block cancels the row.

        Raises:
            InvalidRequest, NotTaken, EngineDied: as Engine.generate.
        """
        events: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        scope = trio.CancelScope()

        async def pump() -> None:
            try:
                with scope:
                    assert self._engine is not None
                    async with self._engine.generate(prompt, **options) as stream:
                        events.put(None)  # accepted
                        async for event in stream:
                            events.put(event)
            except Exception as error:  # raised again in the thread that waits
                events.put(error)
            finally:
                events.put(_Over())

        self._soon(lambda: self._start(pump, events))
        try:
            _received(events)
            yield _until_over(events)
        finally:
            self._soon(scope.cancel)

    def statistics(self) -> dict[str, Any]:
        """As Engine.statistics."""
        assert self._engine is not None
        return self._engine.statistics()

    def _start(self, pump: Callable[[], Any], events: "queue.SimpleQueue[_Message]") -> None:
        assert self._calls is not None
        try:
            self._calls.start_soon(pump)
        except RuntimeError as error:  # the nursery is closed: the engine is, or is being, closed
            events.put(error)

    def _soon(self, call: Callable[[], object]) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)

    def close(self) -> None:
        """End the engine and its thread; rows that still run end at once.

        Raises:
            EngineDied: the engine had ended by itself.
        """
        assert self._stop is not None
        self._soon(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error


def _received(events: "queue.SimpleQueue[_Message]") -> Event | None:
    message = events.get()
    if isinstance(message, _Over):
        raise EngineDied("the engine was closed")
    if isinstance(message, BaseException):
        raise message
    return message


def _until_over(events: "queue.SimpleQueue[_Message]") -> Iterator[Event]:
    event = None
    while not isinstance(event, Finished | Failed):
        event = _received(events)
        assert event is not None
        yield event


@contextlib.contextmanager
def open_engine_sync(model: str | os.PathLike[str], **settings: Any) -> Iterator[EngineThread]:
    """Load a model and run an engine on a thread of its own for as long as the block lasts.

    Blocks until the model is loaded. The engine may be used from any number of threads.

    Args:
        model: a directory in mlx-lm's format, or a hub name.
        settings: see Settings.

    Raises:
        EngineDied: the engine ended by itself.
        Exception: what loading raised, or the block.
    """
    engine = EngineThread(partial(models.load, os.fspath(model)), Settings(**settings))
    try:
        yield engine
    finally:
        engine.close()
