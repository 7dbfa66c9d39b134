"""Other people's clients and checkers against the real server.

They live in an environment of their own, `.venv-clients` (`make clients`): their versions exclude ours.
"""

import json
import pathlib
import subprocess
import sys

import pytest
import trio

from motet.http.generation import UNSUPPORTED
from served import Told, streamed
from test_process import Process, fast_blas, process

HERE = pathlib.Path(__file__).parent
PYTHON = HERE.parent / ".venv-clients" / "bin" / "python"
SERVE = (sys.executable, "-m", "motet", "serve", "--port", "0", "--log-json", "--image-notes")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_GRAMMARS = "response_format" not in UNSUPPORTED
_WAITS = pytest.mark.xfail(not _GRAMMARS, reason="grammars are not served yet", strict=True)
WAITS = {"tools": _WAITS, "structured": _WAITS}  # the tools' parts force a call
PARTS = [
    *[(client, part) for client in ("openai", "litellm", "instructor", "pydantic_ai", "openai_agents")
      for part in ("chat", "stream", "tools", "structured")],
    *[("anthropic", part) for part in ("chat", "stream", "stops", "refusals", "tools", "structured")],
]  # fmt: skip


async def run(*command: str, limit: float = 600) -> subprocess.CompletedProcess[bytes]:
    """Run a program of the clients' environment."""
    assert PYTHON.exists(), "no clients are installed: make clients"
    with trio.fail_after(limit):
        return await trio.run_process(
            [str(PYTHON), *command], capture_stdout=True, capture_stderr=True, check=False
        )


@pytest.mark.parametrize(
    ("client", "part"), [pytest.param(*both, marks=WAITS.get(both[1], ())) for both in PARTS]
)
def test_a_client_works_without_edits(client: str, part: str) -> None:
    async def main() -> None:
        async with process(*SERVE, **fast_blas()) as server:
            url = f"http://127.0.0.1:{server.port}"
            done = await run(str(HERE / "clients" / f"with_{client}.py"), url, part)
        assert done.returncode == 0, done.stderr.decode()[-3000:]

    trio.run(main)


FORMATS = {
    "openai-chat": {"chat-tool-calling", "chat-error-handling"},
    "open-responses": {"tool-calling"},
    "anthropic": {"anth-tool-calling"},
}
"""llm-comply's formats, and what fails in each: forced calls until grammars are served; and that a chat's
``model`` may be left out here, which it takes for an error that should be found."""


@pytest.mark.parametrize("form", FORMATS)
def test_llm_comply_passes(form: str) -> None:
    async def main() -> None:
        async with process(*SERVE, **fast_blas()) as server:
            target = ("-u", f"http://127.0.0.1:{server.port}/v1", "-k", "none", "-m", "default_model")
            told = await run("-m", "llm_comply.cli", *target, "--format", form, "--json", "--timeout", "600")
        results = {r["id"]: r for r in json.loads(told.stdout)["results"]}
        failed = {name for name, result in results.items() if result["status"] == "failed"}
        expected = {n for n in FORMATS[form] if not _GRAMMARS or not n.endswith("tool-calling")}
        assert failed == expected, [results[name] for name in failed ^ expected]
        assert len(results) >= 9

    trio.run(main)


CANARY = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0.8, "seed": 5}


def test_schemathesis_finds_no_5xx_and_hurts_no_stream(tmp_path: pathlib.Path) -> None:
    """Every route of /openapi.json, with bodies that fit their schema and bodies that do not."""

    async def main() -> None:
        # A budget and a limit, so that what fits the schema is not generated for minutes.
        short = ("--max-tokens", "16", "--kv-budget", "64MB")
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
                    "--max-examples", "10", "--request-timeout", "120", "--seed", "1", "--workers", "2",
                    limit=1500,
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
