"""One HTTP request's lifetime, and the serve loop.

hypercorn and quart-trio do the protocols; three things are ours, each for a defect found in them
(docs/decisions/0002-http.md): a request's leases are let go exactly once however it ends; the request is
not cancelled while its last body message is being sent; and a client that reads nothing cannot hold
up the server's end.
"""

import contextlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from quart import Quart
from quart.asgi import ASGIHTTPConnection
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection

from motet.http.errors import HTTPError

LEASES = "motet.leases"
"""Where a request's scope keeps the AsyncExitStack of what it has opened."""

CONNECTIONS = 1024
"""Connections at once at most; more are closed unanswered."""

_SEND_LIMIT = 30.0  # seconds until a client that reads nothing is taken to be gone


class Exchange(TrioASGIHTTPConnection):
    """One request and its response. What it opened is let go when it ends, however it ends."""

    async def __call__(self, receive: Any, send: Any) -> None:
        self._ending = False

        async def noting_the_end(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._ending = True
            await send(message)

        async with contextlib.AsyncExitStack() as leases:
            cast(dict[str, Any], self.scope)[LEASES] = leases
            await super().__call__(receive, noting_the_end)

    async def handle_messages(self, nursery: trio.Nursery, request: Any, receive: Any) -> None:  # type: ignore[override]
        await ASGIHTTPConnection.handle_messages(self, request, receive)
        # hypercorn says "disconnect" from inside the last send as well; to cancel that would lose
        # its restart of the idle timer, and the connection would never be closed.
        if not self._ending:
            nursery.cancel_scope.cancel(reason="the client has left")


class NoWebSocket(TrioASGIWebsocketConnection):
    """Refuses a WebSocket's handshake, whatever its path.

    Quart would look for a route of its own kind, where the guards and the writing of errors, made for
    requests, do not reach.
    """

    async def __call__(self, receive: Any, send: Any) -> None:
        refused = HTTPError(404, "there are no WebSockets here", param="path", code="unknown_route")
        body = json.dumps(refused.openai).encode()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        if self.scope["http_version"] != "2":
            headers.append((b"connection", b"close"))  # hypercorn does, and does not say it
        await send({"type": "websocket.http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


class Connection(TCPServer):
    """hypercorn's connection, with a limit to how long a send may take."""

    async def _read_data(self) -> None:
        await super()._read_data()
        # The client has closed. hypercorn would keep the connection, and its seat here, until the
        # keep-alive time of an idle one is over.
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            try:
                # Shielded, as in hypercorn: half a message would garble the stream.
                with trio.fail_after(_SEND_LIMIT, shield=True):
                    await self.stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                await trio.aclose_forcefully(self.stream)
                await self.protocol.handle(Closed())


async def serve(
    app: Quart,
    listeners: list[trio.SocketListener],
    stop: Callable[[], Awaitable[None]],
    grace: float,
) -> None:
    """Serve until ``stop()`` returns, then at most ``grace`` seconds more for running requests."""
    config = Config()
    config.keep_alive_timeout = 75.0  # longer than clients keep theirs, so that they close first
    config.include_server_header = False
    context = WorkerContext(None)
    seats = trio.Semaphore(CONNECTIONS)

    async def connection(stream: trio.SocketStream) -> None:
        if seats.value == 0:
            await trio.aclose_forcefully(stream)
            return
        async with seats, stream:
            await Connection(ASGIWrapper(app), config, context, ConnectionState({}), stream)  # type: ignore[arg-type]

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(trio.serve_listeners, connection, listeners, handler_nursery=connections)
            )
            await stop()
            accepting.cancel_scope.cancel(reason="the server is stopping")
        await context.terminated.set()  # idle connections close now
        connections.cancel_scope.deadline = trio.current_time() + grace
