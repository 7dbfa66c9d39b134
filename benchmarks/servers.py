"""Starts and stops the servers that are measured, all of them in one environment."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import attrs
import httpx
import trio
from clients import connect

_PRELOAD = "libopenblas.so.0"
_START = 600.0  # seconds: large models take long to load
_STOP = 15.0
_LOG_LINES = 25


class ServerDied(Exception):
    """A server ended by itself, or never answered."""


@attrs.frozen
class Server:
    """A running server."""

    name: str
    url: str
    process: trio.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Look whether it still runs.

        Raises:
            ServerDied: it does not.
        """
        if self.process.poll() is not None:
            raise ServerDied(f"{self.name} ended with {self.process.returncode}\n{self.log_end()}")

    def log_end(self) -> str:
        """The last lines that it logged."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


Command = Callable[[str, int], Sequence[str]]
"""The arguments after ``python``, given a model directory and a port."""


def motet(*flags: str) -> Command:
    """``motet serve``."""
    return lambda model, port: ["-m", "motet", "serve", *_address(model, port), *flags]


def motet_with_thread_names(*flags: str) -> Command:
    """``motet serve`` whose threads have names that the kernel shows."""
    script = str(Path(__file__).with_name("named_threads.py"))
    return lambda model, port: [script, "serve", *_address(model, port), *flags]


def mlx_lm(*flags: str) -> Command:
    """``mlx_lm.server``."""
    return lambda model, port: ["-m", "mlx_lm", "server", *_address(model, port), *flags]


def _address(model: str, port: int) -> list[str]:
    return ["--model", model, "--host", "127.0.0.1", "--port", str(port)]


def environment() -> dict[str, str]:
    """This environment; with OpenBLAS preloaded if MLX runs on the CPU and it can be."""
    inherited = os.environ.get("LD_PRELOAD")
    preload = f"{_PRELOAD}:{inherited}" if inherited else _PRELOAD
    preloaded = {**os.environ, "LD_PRELOAD": preload}
    code = "import mlx.core as mx; print(mx.default_device())"
    probe = subprocess.run(
        [sys.executable, "-c", code], env=preloaded, capture_output=True, text=True, check=True
    )
    usable = "cpu" in probe.stdout and "cannot be preloaded" not in probe.stderr
    return preloaded if usable else dict(os.environ)


def default_model() -> str:
    """The directory of motet's default model."""
    command = [sys.executable, "-m", "motet", "default-model"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def random_model(size: str, *options: str) -> Iterator[str]:
    """A directory with a model of random_models.py, made in a process of its own, for the block."""
    with tempfile.TemporaryDirectory(prefix="motet-benchmark-") as folder:
        script = str(Path(__file__).with_name("random_models.py"))
        subprocess.run([sys.executable, script, size, folder, *options], check=True)
        yield folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def start(name: str, command: Command, model: str, env: dict[str, str]) -> AsyncIterator[Server]:
    """Run a server for as long as the block lasts; it answers when the block begins.

    Raises:
        ServerDied: it did not start, or ended before the block did.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="motet-benchmark-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = await trio.lowlevel.open_process(
                [sys.executable, *command(model, port)], env=env, stdout=sink, stderr=sink
            )
        try:
            server = Server(name, f"http://127.0.0.1:{port}", process, log)
            await _answers(server)
            yield server
        except Exception:
            # A dead server explains whatever else went wrong.
            with trio.move_on_after(_STOP):
                await process.wait()
            server.check()
            raise
        finally:
            await stop(process)


async def _answers(server: Server) -> None:
    with trio.move_on_after(_START):
        async with connect(server.url) as http:
            while True:
                server.check()
                with contextlib.suppress(httpx.HTTPError):
                    response = await http.get("/health", timeout=5.0)
                    if response.status_code == 200:
                        return
                await trio.sleep(0.1)
    raise ServerDied(f"{server.name} did not answer\n{server.log_end()}")


async def stop(process: trio.Process) -> None:
    """End a process: politely, then not."""
    with trio.CancelScope(shield=True):
        process.terminate()
        with trio.move_on_after(_STOP):
            await process.wait()
        if process.poll() is None:
            process.kill()
            await process.wait()
