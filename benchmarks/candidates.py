"""The three that overhead.py compares, each in a process of its own, all asked in the same way."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio
from clients import Reply, body, connect, fetch
from machine import thread_seconds
from prompts import TokenPrompts
from servers import Server, ServerDied, stop
from workers import Marks

_DEVICE = "motet-device"


@attrs.frozen
class Decoded:
    """What one of the three did with one set of prompts."""

    begun: float
    rows: list[Marks]
    by_thread: dict[str, float] = attrs.Factory(dict)
    """CPU seconds by the role of the threads, where that is known."""

    @property
    def tokens(self) -> int:
        return sum(row[-1][1] for row in self.rows)

    @property
    def aggregate(self) -> float:
        return self.tokens / (max(row[-1][0] for row in self.rows) - self.begun)

    @property
    def ttft(self) -> float:
        """Mean seconds to the first token."""
        return sum(row[0][0] - self.begun for row in self.rows) / len(self.rows)

    @property
    def steady(self) -> float:
        """Not a number if one stream ended before another began."""
        begin = max(row[0][0] for row in self.rows)
        end = min(row[-1][0] for row in self.rows)
        if end <= begin:
            return float("nan")
        return sum(_made(row, end) - _made(row, begin) for row in self.rows) / (end - begin)


def _made(row: Marks, by: float) -> int:
    return max((tokens for at, tokens in row if at <= by), default=0)


class Candidate(Protocol):
    """One of the three."""

    @property
    def pid(self) -> int: ...

    async def decode(self, prompts: list[list[int]], max_tokens: int) -> Decoded: ...


class Worker:
    """A process of workers.py."""

    def __init__(self, process: trio.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def decode(self, prompts: list[list[int]], max_tokens: int) -> Decoded:
        job = json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n"
        assert self._process.stdin is not None
        with contextlib.suppress(trio.BrokenResourceError):  # answer() tells why
            await self._process.stdin.send_all(job.encode())
        return Decoded(**await self.answer())

    async def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            ServerDied: the process ended.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            more = await self._process.stdout.receive_some()
            if not more:
                raise ServerDied(self._log.read_text(errors="replace")[-2000:])
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.asynccontextmanager
async def work(kind: str, model: str, batch: int, env: dict[str, str]) -> AsyncIterator[Worker]:
    """A worker that is ready."""
    with tempfile.TemporaryDirectory(prefix="motet-benchmark-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, str(Path(__file__).with_name("workers.py")), kind, model, str(batch)]
        with log.open("wb") as sink:
            process = await trio.lowlevel.open_process(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink
            )
        try:
            worker = Worker(process, log)
            await worker.answer()
            yield worker
        finally:
            await stop(process)


class Served:
    """A server, asked over HTTP."""

    def __init__(self, server: Server, prompts: TokenPrompts) -> None:
        self._server = server
        self._prompts = prompts

    @property
    def pid(self) -> int:
        return self._server.pid

    async def decode(self, prompts: list[list[int]], max_tokens: int) -> Decoded:
        replies = [Reply() for _ in prompts]
        async with connect(self._server.url) as http:
            before = thread_seconds(self.pid, _DEVICE)
            async with trio.open_nursery() as nursery:
                for prompt, reply in zip(prompts, replies, strict=True):
                    request = body(max_tokens, prompt=prompt)
                    nursery.start_soon(fetch, http, "/v1/completions", request, reply)
            after = thread_seconds(self.pid, _DEVICE)
        begun = min(reply.sent for reply in replies)
        by_thread = {role: after[role] - before[role] for role in after}
        return Decoded(begun, list(map(self._marks, replies)), by_thread)

    def _marks(self, reply: Reply) -> Marks:
        # A chunk of text does not say how many tokens it is: count them, and let the usage have
        # the last word.
        pieces, total = reply.pieces(), reply.usage["completion_tokens"]
        counts = self._prompts.count([text for _, text in pieces])
        marks, made = list[tuple[float, int]](), 0
        for (at, _), count in zip(pieces, counts, strict=True):
            made += count
            marks.append((at, round(made * total / sum(counts))))
        return marks
