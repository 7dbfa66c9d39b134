"""What each device command does. Runs on the device thread alone; knows nothing of threads or Trio.

Owns the model, the rows and the snapshots: every array in the process.
"""

import time
from collections.abc import Callable, Iterable
from typing import TypeAlias, assert_never

import attrs

from motet.channels.device import (
    Abandon,
    Abandoned,
    Chunk,
    Chunked,
    ChunkFault,
    Drop,
    Dropped,
    Forget,
    Join,
    JoinFault,
    RowTokens,
    Snapshot,
)
from motet.channels.request import Work
from motet.engine.group import Group, Observe, Sampled
from motet.engine.model import Model
from motet.engine.row import Row
from motet.engine.sampling import SamplingSession
from motet.engine.state import fresh_copy, nbytes, trimmable

Computing: TypeAlias = Chunk | Abandon | Join | Drop
"""Commands that touch rows: before one runs, the step in flight is settled."""

Result: TypeAlias = Chunked | ChunkFault | Abandoned | JoinFault | Dropped


@attrs.frozen
class Stored:
    """A snapshot's arrays: caches of one row that nobody writes to."""

    caches: list[object]
    length: int


@attrs.frozen
class StepError:
    """A step failed, and with it all rows of the group, whose state is dropped."""

    rows: tuple[int, ...]
    error: str


class Executor:
    """The device's state and the meaning of its commands."""

    def __init__(
        self,
        model: Model,
        *,
        snapshots: bool,
        part_seconds: float = float("inf"),
        observe: Observe | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._snapshots = snapshots
        self._part_seconds = part_seconds
        self._observe = observe
        self._clock = clock
        self._preparing: dict[int, Row] = {}
        self._group = Group(model.module, observe)
        self._stored: dict[int, Stored] = {}
        self._next_handle = 1

    @property
    def width(self) -> int:
        """Rows in the running group."""
        return len(self._group.rows)

    def kv_bytes(self) -> int:
        """Bytes of the rows' caches, prepared and running; snapshots are not counted."""
        preparing = sum(nbytes(row.caches) for row in self._preparing.values())
        return preparing + nbytes(self._group.caches)

    # --- commands ---

    def execute(self, command: Computing) -> list[Result] | None:
        """Run one command. A fault in it becomes its own result; what else raises is the device's.

        None if only a part of it is done: the same command is to be given again, after a step.
        """
        match command:
            case Chunk():
                return [self._chunk(command)]
            case Abandon(rows):
                return [self._abandon(row) for row in rows]
            case Join(row):
                return self._join(row)
            case Drop(rows):
                return self._drop(rows)
            case _:
                assert_never(command)

    def forget(self, command: Forget) -> None:
        """Drop snapshots."""
        for handle in command.handles:
            del self._stored[handle]

    def _chunk(self, command: Chunk) -> Chunked | ChunkFault:
        started = self._clock()
        try:
            if command.opening is not None:
                opening = command.opening
                self._preparing[command.row] = self._open(opening.work, opening.snapshot, opening.length)
            row = self._preparing[command.row]
            reading = command.tokens[:-1] if command.last else command.tokens
            if reading:
                row.read(self._model.module, reading)
            if not command.last:
                return Chunked(command.row, self._clock() - started)
            return self._begin(row, command.tokens[-1], started)
        except Exception as error:
            self._preparing.pop(command.row, None)
            return ChunkFault(command.row, describe(error))

    def _open(self, work: Work, snapshot: int | None, length: int) -> Row:
        if snapshot is None:
            caches = self._model.caches()
        else:
            stored = self._stored[snapshot]
            caches = fresh_copy(stored.caches, stored.length - length)
        session = SamplingSession(
            temperature=work.sampling.temperature,
            top_p=work.sampling.top_p,
            top_k=work.sampling.top_k,
            min_p=work.sampling.min_p,
            seed=work.sampling.seed,
        )
        return Row(work.row, caches, length, session, work.stop_tokens, work.limit)

    def _begin(self, row: Row, last: int, started: float) -> Chunked:
        first, logits = row.begin(self._model.module, last)
        if self._observe is not None:
            self._observe((row.number,), logits)
        finish = row.finish(first)
        snapshot = None
        if finish is not None:
            del self._preparing[row.number]
            snapshot = self._store(row.caches, row.fed)
        return Chunked(row.number, self._clock() - started, first, finish, snapshot)

    def _abandon(self, number: int) -> Abandoned:
        row = self._preparing.pop(number, None)
        if row is None or row.fed == 0:
            return Abandoned(number, None)
        return Abandoned(number, self._store(row.caches, row.fed))

    def _join(self, number: int) -> list[Result] | None:
        try:
            joined = self._group.join(self._preparing[number], self._part_seconds)
        except Exception as error:
            del self._preparing[number]
            return [JoinFault(number, describe(error))]
        if not joined:
            return None
        del self._preparing[number]
        return []

    def _drop(self, numbers: Iterable[int]) -> list[Result]:
        running = {row.number: row for row in self._group.rows}
        gone = [number for number in numbers if number in running]
        snapshots = {number: self._snapshot_of(running[number]) for number in gone}
        self._group.drop(gone)
        return [Dropped(number, snapshots.get(number)) for number in numbers]

    # --- steps ---

    def step(self, built: Callable[[], None] | None = None) -> list[RowTokens] | StepError:
        """Queue a step and read the one before. A fault is that step's, whenever it shows.

        ``built`` is called between the building of the step's graph and its evaluation.
        """
        return self._guarded(lambda: self._group.step(built))

    def settle(self) -> list[RowTokens] | StepError:
        """Read the step in flight, if one is."""
        return self._guarded(self._group.settle)

    def _guarded(self, advance: Callable[[], list[Sampled]]) -> list[RowTokens] | StepError:
        rows = tuple(row.number for row in self._group.rows)
        try:
            return self._take_out_ended(advance())
        except Exception as error:
            self._group.clear()
            return StepError(rows, describe(error))

    def _take_out_ended(self, sampled: list[Sampled]) -> list[RowTokens]:
        results = []
        ended = []
        for row, token, finish in sampled:
            snapshot = None
            if finish is not None:
                ended.append(row.number)
                snapshot = self._snapshot_of(row)
            results.append(RowTokens(row.number, (token,), finish, snapshot))
        if ended:
            self._group.drop(ended)
        return results

    # --- snapshots ---

    def _snapshot_of(self, row: Row) -> Snapshot | None:
        if not self._snapshots:
            return None
        return self._store(self._group.extract(row.number), row.fed)

    def _store(self, caches: list[object], length: int) -> Snapshot | None:
        if not self._snapshots:
            return None
        handle = self._next_handle
        self._next_handle += 1
        self._stored[handle] = Stored(caches, length)
        return Snapshot(handle, length, nbytes(caches), trimmable(caches))


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"
