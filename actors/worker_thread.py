"""A long-lived thread that does one actor's blocking jobs, in order. It never touches MLX."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog
import trio

from motet.channels.mailbox import Outlet, post

log = structlog.get_logger()

Job = TypeVar("Job")


class WorkerThread(Generic[Job]):
    """Takes jobs; posts what comes of each on Trio's thread.

    Args:
        name: the thread's.
        do: does a job and returns its result.
        close: the thread's last act.
        broken: makes the result of a job whose doing raised.
        outlet: where results go.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Job], Any],
        close: Callable[[], None],
        broken: Callable[[Job, Exception], Any],
        outlet: Outlet[Any],
    ) -> None:
        self._do, self._close, self._broken, self._outlet = do, close, broken, outlet
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def send_nowait(self, job: Job, /) -> None:
        """Queue a job."""
        self._jobs.put(job)

    async def stop(self, seconds: float) -> None:
        """End the thread behind the jobs that it has; a disk that hangs is left behind."""
        self._jobs.put(None)
        with trio.move_on_after(seconds, shield=True):
            await self._over.wait()

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = self._do(job)
            except Exception as error:
                log.error("a job of the prompt cache failed", exc_info=True)
                result = self._broken(job, error)
            self._on_trio(post, self._outlet, result)
        with contextlib.suppress(Exception):
            self._close()
        self._on_trio(self._over.set)

    def _on_trio(self, call: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, *arguments)
