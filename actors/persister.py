"""The SSD persister: prefixes on disk.

Owns: the index of the directory's files, what is being written and what is being read; two threads.
Takes: Load, Fetch, Cancel, Persist and Closing from the store; Exported and Restored from the device; what
its threads have done.
Sends: Found, Loaded and Persisted to the store; Export, Restore, Discard and Forget to the device; jobs to
its threads.
Waited for by: nobody (rows whose prefix is looked for or read wait for Loaded, others go on).

A fault of its own costs what was under way, and nothing else: everything asked is answered with a miss, and
it begins anew with the same mailbox. Without a directory, and after FAULTS of them within a minute, every
Load is a miss.
"""

import contextlib
import pathlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import attrs
import structlog
import trio

from motet.actors.archive import Reader, Writer
from motet.actors.catalogue import Catalogue
from motet.actors.disk import Disk, LocalDisk
from motet.actors.loading import Loading
from motet.actors.worker_thread import WorkerThread
from motet.actors.writing import Writing
from motet.channels.archive import (
    Filed,
    Piece,
    ReaderJob,
    ReadFailed,
    Scanned,
    WriteFailed,
    WriterJob,
    Written,
)
from motet.channels.device import Discard, Exported, PersisterCommand, Restored, Snapshot
from motet.channels.gauges import PersisterGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.persister import Cancel, Closing, Fetch, Load, Persist, ToPersister
from motet.channels.store import Found, Loaded, Persisted

log = structlog.get_logger()

FAULTS = 3
FAULT_WINDOW = 60.0
"""So many faults within so many seconds, and it keeps to memory."""
_LAST_JOB = 5.0  # seconds that a thread has to end


@attrs.frozen
class Outlets:
    """Whom the persister speaks to."""

    store: Outlet[Found | Loaded | Persisted]
    device: Outlet[PersisterCommand]


@attrs.define
class Desk:
    """What has been asked and not answered: it outlives a fault."""

    loads: set[int] = attrs.Factory(set)
    persisting: int | None = None
    restoring: int | None = None
    jobs: int = 0
    """Numbers given to jobs and restorations so far."""

    def number(self) -> int:
        """A new one."""
        self.jobs += 1
        return self.jobs


async def persister(
    inbox: trio.MemoryReceiveChannel[ToPersister],
    from_threads: Outlet[ToPersister],
    outlets: Outlets,
    directory: pathlib.Path | None,
    ceiling: int,
    gauges: PersisterGauges,
) -> None:
    """Run until the store has left.

    Args:
        inbox: the mailbox.
        from_threads: its sending end.
        outlets: whom it speaks to.
        directory: where the files are; None for none.
        ceiling: bytes that the directory may take.
        gauges: what it tells.
    """
    desk, faults = Desk(), deque[float](maxlen=FAULTS)
    while True:
        try:
            async with _opened(directory, ceiling, from_threads) as threads:
                state = Persister(outlets, threads, desk, gauges, trio.current_time)
                while not state.over:
                    with trio.move_on_at(state.writing.resume_at):
                        state.hear(await inbox.receive())
                    state.writing.resume()
            return
        except Exception as error:
            log.error("persister failed", error=f"{type(error).__name__}: {error}", exc_info=True)
            gauges.restarts += 1
            _answer_all(desk, outlets)
            faults.append(trio.current_time())
            if len(faults) == FAULTS and faults[-1] - faults[0] < FAULT_WINDOW:
                directory = None


def _answer_all(desk: Desk, outlets: Outlets) -> None:
    for row in desk.loads:
        post(outlets.store, Loaded(row, None))
    if desk.persisting is not None:
        post(outlets.store, Persisted(desk.persisting, stored=False))
    if desk.restoring is not None:
        post(outlets.device, Discard(desk.restoring))
    desk.loads.clear()
    desk.persisting = desk.restoring = None


@attrs.frozen
class Threads:
    """One writes, one reads, so that no reader waits for a flush."""

    writer: Outlet[WriterJob]
    reader: Outlet[ReaderJob]


@contextlib.asynccontextmanager
async def _opened(
    directory: pathlib.Path | None, ceiling: int, outlet: Outlet[ToPersister]
) -> AsyncIterator[Threads | None]:
    """The threads, for as long as the block lasts; None if there is no directory to work in."""
    disk = _disk(directory)
    if disk is None:
        yield None
        return
    writer, reader = Writer(disk, ceiling), Reader(disk)
    writing: WorkerThread[WriterJob] = WorkerThread(
        "motet-writer", writer.do, writer.abort, lambda job, e: WriteFailed(job.job, repr(e)), outlet
    )
    reading: WorkerThread[ReaderJob] = WorkerThread(
        "motet-reader", reader.do, reader.close, lambda job, e: ReadFailed(job.job, repr(e)), outlet
    )
    try:
        yield Threads(writing, reading)
    finally:
        await writing.stop(_LAST_JOB)
        await reading.stop(_LAST_JOB)


def _disk(directory: pathlib.Path | None) -> Disk | None:
    if directory is None:
        return None
    try:
        return LocalDisk(directory)
    except OSError as error:
        log.error("no prompt cache on disk", directory=str(directory), error=str(error))
        return None


class Persister:
    """The persister's state. Every decision is synchronous."""

    def __init__(
        self,
        outlets: Outlets,
        threads: Threads | None,
        desk: Desk,
        gauges: PersisterGauges,
        clock: Callable[[], float],
    ) -> None:
        self.over = False
        self._to = outlets
        self._desk = desk
        self._gauges = gauges
        self._catalogue = Catalogue()
        self._scanned = threads is None
        self._early: list[Load | Persist] = []  # what came before the directory was looked through
        self.writing = Writing(
            outlets.device,
            threads.writer if threads is not None else None,
            self._persisted,
            desk.number,
            self._catalogue,
            gauges,
            clock,
        )
        self._loading = Loading(
            outlets.device,
            threads.reader if threads is not None else None,
            lambda row, nbytes: post(outlets.store, Found(row, nbytes)),
            self._loaded,
            self._restoring,
            desk.number,
            self.writing.remove,
            self._catalogue,
            gauges,
            clock,
        )

    def hear(self, message: ToPersister) -> None:
        """Take one message and act on it."""
        match message:
            case Load(row):
                self._desk.loads.add(row)
                self._when_scanned(message)
            case Persist(handle):
                self._desk.persisting = handle
                self._when_scanned(message)
            case Fetch(row):
                self._loading.fetch(row)
            case Cancel(row):
                self._cancel(row)
            case Restored():
                self._loading.restored(message)
            case Exported():
                self.writing.exported(message)
            case Scanned(job, files, nbytes):
                if self.writing.owns(job):
                    self._gauges.bytes = nbytes
                    self._begin(files)
            case Written(job):
                if self.writing.owns(job):
                    self.writing.written(message)
            case WriteFailed(job, error):
                if self.writing.owns(job):
                    self.writing.failed(error)
                    self._begin(())
            case Piece(job):
                if self._loading.owns(job):
                    self._loading.piece(message)
            case ReadFailed(job):
                if self._loading.owns(job):
                    self._loading.failed(message)
            case Closing():
                self.over = True
            case _:
                assert_never(message)
        self._gauges.files = len(self._catalogue)

    def _when_scanned(self, message: Load | Persist) -> None:
        if not self._scanned:
            self._early.append(message)
        elif isinstance(message, Load):
            self._loading.load(message)
        else:
            self.writing.persist(message)

    def _begin(self, files: tuple[Filed, ...]) -> None:
        """The directory was looked through."""
        self._scanned = True
        for file in files:
            if not self._catalogue.add(file):
                self.writing.remove(file.name)
        early, self._early = self._early, []
        for message in early:
            self._when_scanned(message)

    def _cancel(self, row: int) -> None:
        early = [message for message in self._early if isinstance(message, Load) and message.row == row]
        for message in early:
            self._early.remove(message)
            self._loaded(row, None, ())
        self._loading.cancel(row)

    def _loaded(self, row: int, snapshot: Snapshot | None, tokens: tuple[int, ...]) -> None:
        self._desk.loads.discard(row)
        post(self._to.store, Loaded(row, snapshot, tokens))

    def _persisted(self, stored: bool) -> None:
        handle, self._desk.persisting = self._desk.persisting, None
        assert handle is not None
        post(self._to.store, Persisted(handle, stored))

    def _restoring(self, number: int | None) -> None:
        self._desk.restoring = number
