"""A server on a real socket over a tiny model, and raw clients for it."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import trio
from quart import Quart

import families
import motet
from motet.actors.system import Settings, open_system
from motet.http.access import Access
from motet.http.app import make_app
from motet.http.connection import serve


@attrs.frozen
class Server:
    """Where it is, and the engine behind it."""

    engine: motet.Engine
    port: int
    app: Quart

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60)

    async def stats(self) -> dict[str, Any]:
        async with self.client() as client:
            return (await client.get("/stats")).json()  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def served(
    family: str = "llama",
    wrap: families.Wrap | None = None,
    access: Access | None = None,
    **options: Any,
) -> AsyncIterator[Server]:
    """Serve for as long as the block lasts."""
    async with open_system(families.loader(family, wrap=wrap), Settings(**options)) as engine:
        async with serving(engine, access) as server:
            yield server


@contextlib.asynccontextmanager
async def serving(engine: motet.Engine, access: Access | None = None) -> AsyncIterator[Server]:
    """The same for an engine that there is already."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        app = make_app(engine, "tiny", access)
        nursery.start_soon(serve, app, listeners, stop.wait, 1.0)
        yield Server(engine, listeners[0].socket.getsockname()[1], app)
        stop.set()


def chat(content: str, **fields: Any) -> dict[str, Any]:
    """A chat request; sampled, for a tiny model's greedy text is one token over and over."""
    messages = [{"role": "user", "content": content}]
    return {"model": "default_model", "messages": messages, "temperature": 1, "seed": 3, **fields}


def text(prompt: Any, **fields: Any) -> dict[str, Any]:
    """A text completion request."""
    return {"model": "default_model", "prompt": prompt, **fields}


@attrs.define
class Told:
    """What a stream said: its text, how it ended, its usage."""

    text: str = ""
    texts: dict[int, str] = attrs.Factory(dict)
    """Each choice's."""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False

    @property
    def song(self) -> tuple[str, str | None, bool]:
        """What must not depend on the neighbours."""
        return self.text, self.finish, self.done


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Told:
    """Read a stream to its end."""
    told = Told()
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            take_line(told, line)
    return told


def take_line(told: Told, line: str) -> None:
    """One line of a stream."""
    if not line.startswith("data: "):
        assert not line or line.startswith(":")
        return
    if line == "data: [DONE]":
        told.done = True
        return
    chunk = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        told.error = chunk["error"]
        return
    told.usage = chunk.get("usage") or told.usage
    for choice in chunk["choices"]:
        said = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        told.text += said
        told.texts[choice["index"]] = told.texts.get(choice["index"], "") + said
        told.finish = choice["finish_reason"] or told.finish


async def send(port: int, path: str, body: dict[str, Any] | bytes) -> trio.SocketStream:
    """Send a request on a raw connection, which the caller reads or closes as it likes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    await stream.send_all(head.encode() + data)
    return stream


async def wait_empty(server: Server, rows: int = 0) -> dict[str, Any]:
    """Wait until no more than ``rows`` rows are anywhere; with none, no byte either."""
    with trio.fail_after(10):
        while True:
            stats = server.engine.statistics()
            batch = stats["batch"]
            held = batch["active_rows"] + batch["preparing_rows"] + batch["pending_rows"]
            if held <= rows and (rows or batch["kv_bytes"] == 0):
                return stats
            await trio.sleep(0.002)
