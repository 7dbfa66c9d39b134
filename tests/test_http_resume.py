"""A client that loses its stream and takes it up again, on a real socket: the whole text, nothing twice."""

import itertools
import json
import math
import random
from collections import Counter
from typing import Any

import attrs
import openai
import pytest
import trio

import families
from served import Server, Told, chat, send, served, take_line, text, wait_empty

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DROPS = 100


@attrs.define
class Client:
    """Reads a stream on a raw connection, and drops that when it likes."""

    port: int
    path: str
    body: dict[str, Any]
    name: str = ""
    events: list[bytes] = attrs.Factory(list)
    """What came with an id."""
    told: Told = attrs.Factory(Told)

    def __attrs_post_init__(self) -> None:
        usage = {"include_usage": True}
        self.body = {"resumable": True, **self.body, "stream": True, "stream_options": usage}

    def asked(self, way: str) -> tuple[str, str, dict[str, Any], dict[str, str]]:
        """Method, path, body and headers: as it first asks, or one of the ways to take the stream up."""
        last = {"Last-Event-ID": f"{self.name}:{len(self.events)}"}
        match way:
            case "begin":
                return "POST", self.path, self.body, {}
            case "field":
                resume = {"id": self.name, "received": len(self.events)}
                return "POST", self.path, self.body | {"resume": resume}, {}
            case "header":
                return "POST", self.path, self.body, last
            case _:
                return "GET", f"/v1/requests/{self.name}/stream", {}, last

    async def read(self, way: str, most: float = math.inf) -> None:
        """Read to the end, or until so many events have come in all; then drop the connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        try:
            await stream.send_all(_written(*self.asked(way)))
            left = await self._head(stream)
            while len(self.events) < most and not self.told.done:
                event, end, left = left.partition(b"\n\n")
                if end:
                    self._take(event)
                    continue
                data = await stream.receive_some()
                assert data, "the stream ended early"
                left = event + data
        finally:
            await trio.aclose_forcefully(stream)

    async def _head(self, stream: trio.SocketStream) -> bytes:
        """Read the headers; return what came behind them."""
        left = b""
        while b"\r\n\r\n" not in left:
            data = await stream.receive_some()
            assert data
            left += data
        head, _, left = left.partition(b"\r\n\r\n")
        assert b" 200 " in head.partition(b"\r\n")[0], (head, left)
        return left

    def _take(self, event: bytes) -> None:
        for line in event.decode().split("\n"):
            if line.startswith("id: "):
                self.name, _, number = line.removeprefix("id: ").partition(":")
                assert int(number) == len(self.events) + 1  # none twice, none lost
                self.events.append(event)
            else:
                take_line(self.told, line)


def _written(method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> bytes:
    """A request of HTTP/1.0, to which the answer is not cut into chunks."""
    data = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.0", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def test_a_client_that_drops_at_a_random_token_gets_the_same_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred times, by all ways, some drop again; five clients beside each other."""
    monkeypatch.setattr(families.tokenizer(), "eos_token_ids", set())  # no row ends by chance
    draw = random.Random(3)
    ways: Counter[str] = Counter()
    # Room for all rows: where some wait, a stream that nobody reads gives way.
    async with served(batch=16, resume_rows=100, resume_window=60) as server:

        async def one(number: int) -> None:
            path = TEXT if number % 4 == 3 else CHAT
            ask = text if path == TEXT else chat
            prompt: Any = f"number {number % 10}"
            if path == TEXT and number % 8 == 7:
                prompt = [prompt, f"other {number % 10}"]
            client = Client(
                server.port,
                path,
                ask(prompt, n=1 + (number % 5 == 1), max_tokens=60, temperature=1, seed=number),
            )
            most = draw.randrange(1, 30)
            way = "begin"
            while True:
                await client.read(way, most)
                if client.told.done:
                    break
                ways[way := draw.choice(["field", "header", "get"])] += 1
                again = draw.random() < 0.2
                most = len(client.events) + draw.randrange(9) if again else math.inf
            undropped = Client(server.port, path, client.body, name=client.name)
            await undropped.read("get")
            assert client.events == undropped.events and client.told == undropped.told
            told = client.told
            assert told.usage is not None and told.finish and told.error is None
            if number % 10 == 0:  # nor does it differ from one that could not be taken up
                plain = Client(server.port, path, client.body | {"resumable": False})
                await plain.read("begin")
                assert plain.told.song == told.song and not plain.events

        async def several(first: int) -> None:
            for number in itertools.count(first, 5):
                if sum(ways.values()) >= DROPS:
                    return
                await one(number)

        async with trio.open_nursery() as nursery:
            for first in range(5):
                nursery.start_soon(several, first)
        assert len(ways) == 3
        stats = await wait_empty(server)
        assert stats["resume"]["let_go"] == 0 and stats["batch"]["kv_projected_bytes"] == 0


async def test_without_asking_a_dropped_stream_is_cancelled() -> None:
    async with served() as server:
        stream = await send(server.port, CHAT, chat("x", max_tokens=3000, stream=True))
        await stream.receive_some(100)
        await trio.aclose_forcefully(stream)
        await wait_empty(server)
        assert server.engine.gauges.resuming.detached == 0


async def dropped(server: Server) -> Client:
    client = Client(server.port, CHAT, chat("x", max_tokens=3000))
    await client.read("begin", 5)
    with trio.fail_after(5):
        while server.engine.gauges.resuming.detached != 1:
            await trio.sleep(0.001)
    return client


async def test_when_the_window_is_over_it_is_404() -> None:
    async with served(resume_window=0.1) as server, server.client() as http:
        client = await dropped(server)
        await wait_empty(server)
        for way in ("field", "header", "get"):
            method, path, body, headers = client.asked(way)
            answer = await http.request(method, path, json=body, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "stream_not_found")
            assert error["param"] == "resume.id"


async def test_a_stream_that_nobody_reads_can_be_cancelled() -> None:
    async with served(resume_window=60) as server, server.client() as http:
        client = await dropped(server)
        path = f"/v1/requests/{client.name}/cancel"
        assert (await http.post(path)).status_code == 200
        await wait_empty(server)
        assert (await http.post(path)).status_code == 404  # it has ended
        await client.read("field")
        assert client.told.done and client.told.error is not None
        assert client.told.error["code"] == "request_cancelled"


async def test_a_drain_ends_a_stream_that_nobody_reads() -> None:
    async with served(resume_window=60) as server:
        await dropped(server)
        with trio.fail_after(5):
            await server.engine.drain(60)


REFUSED: list[tuple[dict[str, Any], dict[str, str], int, str]] = [
    ({"resumable": True}, {}, 400, "resumable"),
    ({"resumable": 1}, {}, 400, "resumable"),
    ({"resume": "x"}, {}, 400, "resume"),
    ({"resume": {"id": "x"}}, {}, 400, "resume.received"),
    ({"resume": {"id": "", "received": 0}}, {}, 400, "resume.id"),
    ({"resume": {"id": "x", "received": -1}}, {}, 400, "resume.received"),
    ({"resume": {"id": "x", "received": 1}}, {}, 404, "resume.id"),
    ({}, {"Last-Event-ID": "x:1"}, 404, "resume.id"),
    ({}, {"Last-Event-ID": "x"}, 400, "Last-Event-ID"),
    ({}, {"Last-Event-ID": "x:-1"}, 400, "Last-Event-ID"),
]


async def test_what_cannot_be_taken_up_is_refused_by_its_field() -> None:
    async with served() as server, server.client() as http:
        for fields, headers, status, param in REFUSED:
            answer = await http.post(CHAT, json=chat("x", max_tokens=2) | fields, headers=headers)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), fields
        client = await dropped(server)
        for resume, status in [
            ({"id": client.name, "received": 1 << 20}, 400),
            ({"id": "chatcmpl-0", "received": 0}, 404),
        ]:
            answer = await http.post(CHAT, json=chat("x") | {"resume": resume})
            assert answer.status_code == status
        other = {"resume": {"id": client.name, "received": 0}}  # the other route's
        assert (await http.post(TEXT, json=text("x") | other)).status_code == 404
        headers = {"Last-Event-ID": "chatcmpl-0:1"}
        answer = await http.get(f"/v1/requests/{client.name}/stream", headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


# OpenAI's client leaves its own generators to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_openais_client_reads_a_resumable_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees an event in an empty line once there was an id: comments have none."""
    monkeypatch.setattr("motet.http.streaming.KEEP_ALIVE", 0.001)
    async with served() as server, server.client() as http:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", http_client=http)
        parts = []
        stream = await client.chat.completions.create(
            **chat("x", max_tokens=30), stream=True, extra_body={"resumable": True}
        )
        async for chunk in stream:
            parts.append(chunk.choices[0].delta.content or "")
        whole = await client.chat.completions.create(**chat("x", max_tokens=30))
    assert "".join(parts) == whole.choices[0].message.content
