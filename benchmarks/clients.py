"""A streaming client that costs little while it measures: what arrives is kept, and parsed later."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import httpx

now = time.perf_counter


class RequestFailed(Exception):
    """The server refused a request or broke its stream off."""


@attrs.define(eq=False)
class Reply:
    """A streamed answer as it comes in."""

    sent: float = 0.0
    reads: list[tuple[float, bytes]] = attrs.Factory(list)
    """Every read from the connection, with its time: several events, or a part of one."""
    ended: float | None = None
    """When the stream's last byte came; None while it lasts, or if we left it."""

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Every JSON event, with the time at which its last byte came.

        Raises:
            RequestFailed: one of them is an error.
        """
        pending = b""
        for at, data in self.reads:
            *whole, pending = (pending + data).split(b"\n\n")
            for event in whole:
                if not event.startswith(b"data: ") or event == b"data: [DONE]":
                    continue
                value: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
                if "error" in value:
                    raise RequestFailed(str(value["error"]))
                yield at, value

    def pieces(self) -> list[tuple[float, str]]:
        """The text, what came in one read together; reads without text are left out."""
        pieces: list[tuple[float, str]] = []
        for at, event in self.events():
            text = "".join(map(_text, event["choices"]))
            if text and pieces and pieces[-1][0] == at:
                pieces[-1] = (at, pieces[-1][1] + text)
            elif text:
                pieces.append((at, text))
        return pieces

    @property
    def first(self) -> float:
        """Seconds from sending to the first text.

        Raises:
            RequestFailed: there is none.
        """
        for at, event in self.events():
            if any(map(_text, event["choices"])):
                return at - self.sent
        raise RequestFailed("the stream has no text")

    @property
    def usage(self) -> dict[str, Any]:
        """The stream's usage.

        Raises:
            RequestFailed: it has none.
        """
        found = [event["usage"] for _, event in self.events() if event.get("usage")]
        if not found:
            raise RequestFailed("the stream has no usage")
        usage: dict[str, Any] = found[-1]
        return usage


def _text(choice: dict[str, Any]) -> str:
    said = choice.get("text") or choice.get("delta", {}).get("content") or ""
    return str(said)


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client without time limits and with a connection for each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False, limits=limits) as http:
        yield http


async def fetch(http: httpx.AsyncClient, path: str, body: dict[str, Any], reply: Reply) -> None:
    """Send a request and read its stream into ``reply``.

    Raises:
        RequestFailed: the answer is not a stream.
    """
    reply.sent = now()
    async with http.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            raise RequestFailed(f"{response.status_code}: {(await response.aread()).decode()}")
        async for data in response.aiter_raw():
            reply.reads.append((now(), data))
    reply.ended = now()


def body(max_tokens: int, **prompt: Any) -> dict[str, Any]:
    """A greedy, streamed request that asks for usage; ``prompt`` or ``messages`` is its prompt."""
    return {
        "model": "default_model",  # both servers take it for what they were started with
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **prompt,
    }
