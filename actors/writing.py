"""Prefixes on their way to disk, one at a time: exported by the device in pieces, written by a thread.

What is written: a prefix that holds enough tokens which no file serves. LEAST of them, so that short prompts
leave no files; and a SHARE of its length, so that a chat that grows turn by turn is not written whole with
each: all that is ever written of one chat is at most 1 / SHARE + 1 times its final size.
"""

import math
from collections import deque
from collections.abc import Callable

import structlog

from motet.actors.catalogue import Catalogue
from motet.channels.archive import Abort, Draft, Filed, Remove, Scan, Write, WriterJob, Written
from motet.channels.device import Export, Exported
from motet.channels.gauges import PersisterGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.persister import Persist

log = structlog.get_logger()

LEAST = 256
SHARE = 1 / 8
PIECE = 4 << 20
"""Bytes that the device hands out between two steps: a few milliseconds."""
BUSY_SHARE = 0.03
"""Of the time that the device and the thread may take together, while rows run: both use cores and memory."""
_LONGEST_PAUSE = 2.0


class Writing:
    """The way to disk.

    Args:
        to_device: where exports are asked for.
        to_writer: the thread; None for none.
        answer: ends a Persist: whether it is stored.
        number: gives a job's number.
        catalogue, gauges, clock: see the persister.
    """

    def __init__(
        self,
        to_device: Outlet[Export],
        to_writer: Outlet[WriterJob] | None,
        answer: Callable[[bool], None],
        number: Callable[[], int],
        catalogue: Catalogue,
        gauges: PersisterGauges,
        clock: Callable[[], float],
    ) -> None:
        self.resume_at = math.inf
        """When to ``resume``."""
        self._to_device = to_device
        self._to_writer = to_writer
        self._answer = answer
        self._number = number
        self._catalogue = catalogue
        self._gauges = gauges
        self._clock = clock
        self._on = to_writer is not None
        self._job: int | None = None  # the thread's
        self._writing_job: int | None = None  # the last that wrote
        self._chores: deque[Callable[[int], WriterJob]] = deque()  # what it is to do when it has time
        self._persist: Persist | None = None
        self._draft: Draft | None = None
        self._position = 0
        self._device_seconds = 0.0  # of the last piece, if rows ran
        self._begin_at = -math.inf
        gauges.writes = "on" if self._on else "off"
        if self._on:
            self._chore(Scan)

    def persist(self, message: Persist) -> None:
        """Write a prefix if it is worth it."""
        if not (self._on and self._worth(message)):
            self._answer(False)
            return
        self._persist, self._draft, self._position = message, None, 0
        self.resume_at = self._begin_at
        self.resume()

    def _worth(self, message: Persist) -> bool:
        _, known = self._catalogue.longest(message.namespace, message.tokens)
        return len(message.tokens) - known >= max(LEAST, SHARE * len(message.tokens))

    def exported(self, piece: Exported) -> None:
        """The device's next bytes."""
        persist = self._persist
        if persist is None or (piece.handle, piece.start) != (persist.handle, self._position):
            return  # asked for by one that failed
        if piece.manifest is None or not piece.data:
            self._give_up()
            return
        first = None
        if self._draft is None:
            replaces: tuple[str, ...] = ()
            if piece.manifest.trimmable:
                replaces = self._catalogue.prefixes(persist.namespace, persist.tokens)
            first = self._draft = Draft(persist.namespace, persist.tokens, piece.manifest, replaces)
        self._position += len(piece.data)
        self._device_seconds = piece.seconds if piece.busy else 0.0
        self._chore(lambda job: Write(job, piece.data, first))

    def _give_up(self) -> None:
        """The snapshot is gone, or cannot be taken apart."""
        if self._draft is not None:
            self._chore(Abort)
        self._end(stored=False)

    def _end(self, *, stored: bool) -> None:
        self._persist = self._draft = None
        self.resume_at = math.inf
        self._answer(stored)

    def remove(self, name: str) -> None:
        """A file that cannot be used."""
        if self._on:
            self._chore(lambda job: Remove(job, name))

    def _chore(self, chore: Callable[[int], WriterJob]) -> None:
        self._chores.append(chore)
        self._next_chore()

    def _next_chore(self) -> None:
        if self._job is None and self._chores and self._to_writer is not None:
            self._job = self._number()
            job = self._chores.popleft()(self._job)
            if isinstance(job, Write):
                self._writing_job = job.job
            post(self._to_writer, job)

    def owns(self, job: int) -> bool:
        """Whether a result is of the job that was asked for; if so, it is done."""
        if job != self._job:
            return False
        self._job = None
        return True

    def written(self, result: Written) -> None:
        """The thread has done its job."""
        self._catalogue.drop(result.gone)
        self._gauges.bytes = result.nbytes or self._gauges.bytes
        draft = self._draft
        if result.job == self._writing_job and draft is not None:
            self._wrote(result, draft)
        self._next_chore()

    def _wrote(self, result: Written, draft: Draft) -> None:
        pause = 0.0
        if self._device_seconds:
            pause = min((self._device_seconds + result.seconds) * (1 / BUSY_SHARE - 1), _LONGEST_PAUSE)
        self._begin_at = self._clock() + pause
        if result.refused:
            self._end(stored=False)
        elif result.name is not None:
            self._catalogue.add(Filed(result.name, draft.namespace, draft.tokens, draft.manifest))
            self._gauges.written += 1
            log.info("prefix written", tokens=len(draft.tokens), bytes=draft.manifest.nbytes)
            self._end(stored=True)
        else:
            self.resume_at = self._begin_at

    def resume(self) -> None:
        """Ask the device for the next bytes, if it is time."""
        if self._persist is not None and self.resume_at <= self._clock():
            self.resume_at = math.inf
            post(self._to_device, Export(self._persist.handle, self._position, PIECE))

    def failed(self, error: str) -> None:
        """The disk takes no more."""
        log.error("nothing more is written to the prompt cache's directory", error=error)
        self._gauges.writes = error
        self._on = False
        self._chores.clear()
        if self._persist is not None:
            self._end(stored=False)
