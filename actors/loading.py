"""Prefixes on their way from disk, one at a time: read by a thread in pieces, taken in by the device.

Rows that ask for the same file wait together. The first leads: the store keeps room for what is read on its
account, and is told of the snapshot by its answer; the others' answers come behind, and they find it there.
"""

from collections import deque
from collections.abc import Callable

import attrs
import structlog

from motet.actors.catalogue import Catalogue
from motet.channels.archive import Filed, Open, Piece, ReaderJob, ReadFailed, ReadOn
from motet.channels.device import Discard, Forget, Restore, Restored, Snapshot
from motet.channels.gauges import PersisterGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.persister import Load

log = structlog.get_logger()

LEAST = 128
"""Tokens that a file must spare a row."""


@attrs.define(eq=False)
class Reading:
    """A file that rows wait for."""

    file: Filed
    loads: list[Load]
    """The first leads."""
    fetched: bool = False
    """The store keeps room for it."""
    given_up: bool = False
    """The row that it is read for has gone, when all of it was with the device."""

    @property
    def lead(self) -> int:
        """The row that it is read for."""
        return self.loads[0].row


@attrs.define(eq=False)
class _Current:
    """The file that is being read."""

    reading: Reading
    number: int
    """The restoration's."""
    since: float
    """When it was begun."""
    pieces: deque[Piece] = attrs.Factory(deque)
    """Read, and not yet given to the device."""
    begun: bool = False
    """Whether the device has its first bytes."""
    restoring: Piece | None = None
    """What the device has not answered yet."""
    read: bool = False


class Loading:
    """The way from disk.

    Args:
        to_device: where bytes go.
        to_reader: the thread; None for none.
        found: tells the store of a file for a row.
        answer: ends a row's Load.
        restoring: notes the number of the restoration under way.
        number: gives a job's number, and a restoration's.
        bad: has a file removed.
        catalogue, gauges, clock: see the persister.
    """

    def __init__(
        self,
        to_device: Outlet[Restore | Discard | Forget],
        to_reader: Outlet[ReaderJob] | None,
        found: Callable[[int, int], None],
        answer: Callable[[int, Snapshot | None, tuple[int, ...]], None],
        restoring: Callable[[int | None], None],
        number: Callable[[], int],
        bad: Callable[[str], None],
        catalogue: Catalogue,
        gauges: PersisterGauges,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._to_device = to_device
        self._to_reader = to_reader
        self._found = found
        self._answer = answer
        self._restoring = restoring
        self._number = number
        self._bad = bad
        self._catalogue = catalogue
        self._gauges = gauges
        self._readings: dict[str, Reading] = {}  # by the file's name
        self._by_row: dict[int, Reading] = {}
        self._queue: deque[Reading] = deque()
        self._current: _Current | None = None
        self._job: int | None = None  # the thread's

    # --- asked ---

    def load(self, load: Load) -> None:
        """Is there a file for a row?"""
        file, length = self._catalogue.longest(load.namespace, load.tokens, load.edge)
        if file is None or length - load.beyond < LEAST:
            self._answer(load.row, None, ())
            return
        reading = self._readings.get(file.name)
        if reading is not None:
            reading.loads.append(load)
        else:
            reading = self._readings[file.name] = Reading(file, [load])
            self._found(load.row, file.manifest.nbytes)
        self._by_row[load.row] = reading

    def fetch(self, row: int) -> None:
        """The store keeps room for what the row leads."""
        reading = self._by_row.get(row)
        if reading is not None and reading.lead == row and not reading.fetched:
            reading.fetched = True
            self._queue.append(reading)
            self._advance()

    def cancel(self, row: int) -> None:
        """A row has gone, or the store needs the room."""
        reading = self._by_row.get(row)
        if reading is None:
            return
        current = self._current
        if current is not None and current.reading is reading and reading.lead == row:
            if current.restoring is not None and current.restoring.last:
                reading.given_up = True
                return  # the snapshot is as good as there
            self._drop_current()
        del self._by_row[row]
        was_lead = reading.lead == row
        reading.loads = [load for load in reading.loads if load.row != row]
        self._answer(row, None, ())
        if was_lead:
            self._ask_again(reading)
        self._advance()

    def _ask_again(self, reading: Reading) -> None:
        """What was read for a row is not to be had so: each row that waits looks anew."""
        del self._readings[reading.file.name]
        if reading in self._queue:
            self._queue.remove(reading)
        for load in reading.loads:
            del self._by_row[load.row]
        for load in reading.loads:
            self.load(load)

    def _drop_current(self) -> None:
        if self._current is not None and self._current.begun:
            post(self._to_device, Discard(self._current.number))
        self._current = None
        self._restoring(None)

    # --- reading ---

    def _advance(self) -> None:
        """Have the thread read on, and the device take in, if they can."""
        if self._current is None and self._job is None and self._queue:
            self._current = _Current(self._queue.popleft(), self._number(), self._clock())
            self._restoring(self._current.number)
            self._ask(Open(self._number(), self._current.reading.file))
        current = self._current
        if current is None:
            return
        if current.pieces and current.restoring is None:
            self._restore(current)
        if not (current.read or current.pieces or self._job is not None):
            self._ask(ReadOn(self._number()))

    def _ask(self, job: ReaderJob) -> None:
        assert self._to_reader is not None
        self._job = job.job
        post(self._to_reader, job)

    def _restore(self, current: _Current) -> None:
        piece = current.restoring = current.pieces.popleft()
        file = current.reading.file
        manifest = None if current.begun else file.manifest
        current.begun = True
        post(self._to_device, Restore(current.number, piece.data, manifest, file.namespace))

    def owns(self, job: int) -> bool:
        """Whether a result is of the job that was asked for; if so, it is done."""
        if job != self._job:
            return False
        self._job = None
        return True

    def piece(self, piece: Piece) -> None:
        """The thread has read on."""
        if self._current is not None and not self._current.read:
            self._current.pieces.append(piece)
            self._current.read = piece.last
        self._advance()

    def failed(self, result: ReadFailed) -> None:
        """The file cannot be read: it serves nobody any more."""
        if self._current is not None:
            if result.damaged:
                self._bad(self._current.reading.file.name)
                self._gauges.bad_files += 1
            self._useless(self._current.reading, result.error)
        self._advance()

    def _useless(self, reading: Reading, error: str) -> None:
        log.warning("prompt cache file not used", file=reading.file.name, reason=error)
        self._drop_current()
        self._catalogue.drop((reading.file.name,))
        if reading.given_up:
            gone = reading.loads.pop(0).row
            del self._by_row[gone]
            self._answer(gone, None, ())
        self._ask_again(reading)

    def restored(self, result: Restored) -> None:
        """The device has taken bytes in."""
        current = self._current
        if current is None or result.number != current.number:
            if result.snapshot is not None:  # of one that was given up
                post(self._to_device, Forget((result.snapshot.handle,)))
            return
        current.restoring = None
        if result.error is not None:
            self._useless(current.reading, result.error)
        elif result.snapshot is not None:
            self._gauges.restoring_seconds += self._clock() - current.since
            self._done(current.reading, result.snapshot)
        self._advance()

    def _done(self, reading: Reading, snapshot: Snapshot) -> None:
        self._current = None
        self._restoring(None)
        del self._readings[reading.file.name]
        self._gauges.restored += 1
        self._gauges.restored_tokens += snapshot.length
        lead, *others = [load.row for load in reading.loads]
        self._answer(lead, snapshot, reading.file.tokens)
        for row in others:
            self._answer(row, None, ())
        for row in (lead, *others):
            del self._by_row[row]
