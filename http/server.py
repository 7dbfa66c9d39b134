"""``motet serve``: the engine and its HTTP front, from the first signal to the last byte."""

import os
import signal
from functools import partial

import attrs
import structlog
import trio

from motet import Engine, EngineDied, Settings
from motet.actors.system import Load, open_system
from motet.http.access import Access, hosts_for
from motet.http.app import RESPONSES_BYTES, make_app
from motet.http.connection import serve

log = structlog.get_logger()

_FLUSH = 5.0  # seconds for responses to be read to their end after the engine's


@attrs.frozen
class HTTPSettings:
    """Where and how to serve."""

    host: str = "127.0.0.1"
    port: int = 8080
    drain_timeout: float = 30.0
    """Seconds that running streams have to end after the first signal."""
    api_keys: tuple[str, ...] = ()
    """One of these is asked for, if there are any."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may call; ``*`` for all."""
    responses_bytes: int = RESPONSES_BYTES
    """Ceiling of the held responses of /v1/responses."""
    strip_billing: bool = False
    """Whether Anthropic clients' billing line is taken off system prompts."""
    images: bool = False
    """Whether images in prompts become a note rather than a refusal."""

    @property
    def access(self) -> Access:
        """Who may ask."""
        return Access(self.api_keys, frozenset(self.cors_origins), hosts_for(self.host))


class CannotListen(Exception):
    """The address cannot be bound."""


async def run(load: Load, model: str, settings: Settings, http: HTTPSettings) -> None:
    """Serve until a signal's drain is over.

    Raises:
        CannotListen: the address is taken or not ours.
        EngineDied: the engine ended by itself; its callers have been told.
        Exception: what loading raised.
    """
    listeners = await _listen(http)
    async with open_system(load, settings) as engine:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain_on_signal, engine, http.drain_timeout)
            port = listeners[0].socket.getsockname()[1]
            log.info("serving", model=model, url=f"http://{http.host}:{port}")
            app = make_app(
                engine,
                model,
                http.access,
                responses_bytes=http.responses_bytes,
                strip_billing=http.strip_billing,
                images=http.images,
            )
            await serve(app, listeners, engine.over.wait, _FLUSH)
            nursery.cancel_scope.cancel()
        if engine.death is not None:
            raise EngineDied("the engine has ended") from engine.death
    log.info("stopped")


async def _listen(http: HTTPSettings) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(http.port, host=http.host, backlog=1024)
    except (OSError, BaseExceptionGroup) as error:
        raise CannotListen(f"cannot listen on {http.host}:{http.port}: {error}") from error


async def _drain_on_signal(engine: Engine, grace: float) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            asked = False
            async for number in signals:
                if asked:  # a second one means now
                    os._exit(128 + number)
                asked = True
                log.info("draining", signal=signal.Signals(number).name, grace_s=grace)
                nursery.start_soon(partial(engine.drain, grace))
