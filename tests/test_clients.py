"""Other people's clients and checkers against the real server.

They live in an environment of their own, `.venv-clients` (`make clients`): their versions exclude ours.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest
import trio

from served import Told, streamed
from test_process import Process, fast_blas, process

HERE = pathlib.Path(__file__).parent
PYTHON = HERE.parent / ".venv-clients" / "bin" / "python"
SERVE = (sys.executable, "-m", "motet", "serve", "--port", "0", "--log-json", "--image-notes")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PARTS = [
    *[(client, part) for client in ("openai", "litellm", "instructor", "pydantic_ai", "openai_agents")
      for part in ("chat", "stream", "tools", "structured")],
    *[("anthropic", part) for part in ("chat", "stream", "stops", "refusals", "tools", "structured")],
]  # fmt: skip


async def run(*command: str, limit: float = 1500) -> subprocess.CompletedProcess[bytes]:
    """Run a program of the clients' environment."""
    assert PYTHON.exists(), "no clients are installed: make clients"
    with trio.fail_after(limit):
        return await trio.run_process(
            [str(PYTHON), *command], capture_stdout=True, capture_stderr=True, check=False
        )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the real model for all clients."""
    env = os.environ | fast_blas()
    with subprocess.Popen(SERVE, stderr=subprocess.PIPE, env=env) as server:
        assert server.stderr is not None
        told = (json.loads(line) for line in server.stderr if line.startswith(b"{"))
        found = next(line["url"] for line in told if line.get("event") == "serving")
        # Its log is read on, so that the pipe never fills up.
        rest = threading.Thread(target=deque, args=(told, 0))
        rest.start()
        yield found
        server.terminate()
        rest.join()


@pytest.mark.parametrize(("client", "part"), PARTS)
def test_a_client_works_without_edits(url: str, client: str, part: str) -> None:
    done = trio.run(run, str(HERE / "client_scripts" / f"with_{client}.py"), url, part)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.parametrize("form", ["openai-chat", "open-responses", "anthropic"])
def test_llm_comply_passes(url: str, form: str) -> None:
    target = ("-u", url + "/v1", "-k", "none", "-m", "default_model", "--timeout", "600")
    told = trio.run(run, "-m", "llm_comply.cli", *target, "--format", form, "--json")
    results = {r["id"]: r for r in json.loads(told.stdout)["results"]}
    failed = {name for name, result in results.items() if result["status"] == "failed"}
    assert not failed, [results[name] for name in failed]
    assert len(results) >= 9


CANARY = {
    "model": "smollm2-135m-instruct",
    "prompt": "Once upon a time",
    "max_tokens": 50,
    "temperature": 0.8,
    "seed": 5,
}


def test_schemathesis_finds_no_5xx_and_hurts_no_stream() -> None:
    """Every route of /openapi.json, with bodies that fit their schema and bodies that do not."""

    async def main() -> None:
        # A budget and a limit, so that what fits the schema is not generated for minutes.
        short = ("--max-tokens", "16", "--kv-budget", "100MB")
        async with process(*SERVE, *short, **fast_blas()) as server:
            alone = await sing(server)
            beside: list[Told] = []
            over = trio.Event()

            async def keep_singing() -> None:
                while not over.is_set():
                    beside.append(await sing(server))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_singing)
                url = f"http://127.0.0.1:{server.port}/openapi.json"
                done = await run(
                    "-m", "schemathesis.cli", "run", url, "--checks", "not_a_server_error",
                    "--max-examples", "10", "--request-timeout", "120", "--seed", "1",
                    "--workers", "1", "--max-time", "240",
                )  # fmt: skip
                over.set()
            async with server.client() as client:
                assert (await client.get("/health")).status_code == 200
        assert done.returncode == 0, done.stdout.decode()[-5000:]
        assert beside and all(told.song == alone.song for told in beside)

    trio.run(main)


async def sing(server: Process) -> Told:
    async with server.client() as client:
        return await streamed(client, "/v1/completions", CANARY)
