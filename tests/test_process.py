"""The server as a process: signals, exit codes, a taken port, the real model."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
import trio

from served import Told, send, streamed
from tiny_server import GUILTY

HERE = pathlib.Path(__file__).parent


class Process:
    """A server process, its port, and its log."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.port = 0
        self.log: list[dict[str, object]] = []
        self.serving = trio.Event()

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        rest = b""
        async for data in self.process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    self.log.append(json.loads(line))
                    if self.log[-1].get("event") == "serving":
                        self.port = int(str(self.log[-1]["url"]).rpartition(":")[2])
                        self.serving.set()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=120)


@contextlib.asynccontextmanager
async def process(*command: str, **environment: str) -> AsyncIterator[Process]:
    async with trio.open_nursery() as nursery:
        env = os.environ | environment
        start = partial(trio.run_process, command, stderr=subprocess.PIPE, check=False, env=env)
        server = Process(await nursery.start(start))
        nursery.start_soon(server.read_log)
        with trio.fail_after(60):
            await server.serving.wait()
        yield server
        nursery.cancel_scope.cancel()


async def drained_by_sigterm(last_prompt: list[int] | None) -> None:
    """SIGTERM with four streams running, far from their ends, and perhaps a row in preparation."""
    async with process(sys.executable, str(HERE / "tiny_server.py")) as server, server.client() as client:
        told: list[Told] = []

        async def stream(prompt: list[int], tokens: int) -> None:
            body = {
                "model": "default_model",
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 1,
                "seed": len(prompt),
            }
            told.append(await streamed(client, "/v1/completions", body))

        async with trio.open_nursery() as nursery:
            for i in range(4):
                nursery.start_soon(stream, [5] * (5 + i), 2200)
            await running(client, 4)
            if last_prompt is not None:
                nursery.start_soon(stream, last_prompt, 20)
                await preparing(client)
            started = trio.current_time()
            os.kill(server.process.pid, signal.SIGTERM)
        with trio.fail_after(10):
            code = await server.process.wait()
        assert code == 0
        assert trio.current_time() - started > 3
        failed = [one for one in told if one.error]
        whole = [one for one in told if not one.error]
        guilty = last_prompt is not None and GUILTY in last_prompt
        assert [one.error["code"] for one in failed if one.error] == ["preparation_failed"] * guilty
        assert len(whole) == len(told) - guilty
        for one in whole:
            assert one.done and one.finish == "length" and one.usage is not None
            assert one.usage["completion_tokens"] in {2200, 20}


async def running(client: httpx.AsyncClient, rows: int) -> None:
    with trio.fail_after(20):
        while (await client.get("/stats")).json()["batch"]["active_rows"] < rows:
            await trio.sleep(0.01)


async def preparing(client: httpx.AsyncClient) -> None:
    with trio.fail_after(20):
        while (await client.get("/stats")).json()["batch"]["preparing_rows"] < 1:
            await trio.sleep(0.001)


LAST_PROMPTS = [None, [6] * 2200, [6] * 2100 + [GUILTY] + [6] * 100]
NAMES = ["streams", "a row in preparation", "a fault in the drain"]


@pytest.mark.parametrize("last_prompt", LAST_PROMPTS, ids=NAMES)
async def test_sigterm_lets_streams_end_whole(last_prompt: list[int] | None) -> None:
    await drained_by_sigterm(last_prompt)


@pytest.mark.slow
@pytest.mark.parametrize("last_prompt", LAST_PROMPTS, ids=NAMES)
@pytest.mark.parametrize("time", range(20))
async def test_sigterm_lets_streams_end_whole_20_times(time: int, last_prompt: list[int] | None) -> None:
    await drained_by_sigterm(last_prompt)


async def test_a_second_signal_ends_the_process_at_once() -> None:
    async with process(sys.executable, str(HERE / "tiny_server.py")) as server, server.client() as client:
        body = {"model": "default_model", "prompt": [5] * 5, "max_tokens": 2200, "stream": True}
        stream = await send(server.port, "/v1/completions", body)
        await running(client, 1)
        os.kill(server.process.pid, signal.SIGTERM)
        with trio.fail_after(10):
            while (await client.get("/health")).json()["status"] != "draining":
                await trio.sleep(0.01)
            os.kill(server.process.pid, signal.SIGTERM)
            assert await server.process.wait() == 128 + signal.SIGTERM
        await trio.aclose_forcefully(stream)


def test_a_taken_port_ends_it_with_a_message_and_exit_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "motet", "serve", "--model", "none", "--port", port]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "cannot listen" in run.stderr and "Traceback" not in run.stderr


def test_the_real_model_answers_openais_client() -> None:
    """`motet serve` on the embedded default model: France's capital, streamed and not."""

    async def main() -> None:
        command = [sys.executable, "-m", "motet", "serve", "--port", "0", "--log-json"]
        async with process(*command, **fast_blas()) as server:
            await trio.to_thread.run_sync(ask_through_openai, server.port)

    trio.run(main)


def fast_blas() -> dict[str, str]:
    """Debian's OpenBLAS, where it is installed: the same answers, sooner."""
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return {}
    return {"LD_PRELOAD": "libopenblas.so.0"}


def ask_through_openai(port: int) -> None:
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    ask: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "What is the capital of France?"}
    ]
    whole = client.chat.completions.create(model=model, messages=ask, temperature=0, max_tokens=24)
    assert "Paris" in str(whole.choices[0].message.content)
    chunks = client.chat.completions.create(
        model=model, messages=ask, temperature=0, max_tokens=24, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    text, usage = "", None
    for chunk in chunks:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=ask)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=ask, seed=-1)
    client.close()
