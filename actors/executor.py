"""What each device command does. Runs on the device thread alone; knows nothing of threads or Trio.

Owns the model, the rows and the snapshots: every array in the process.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, assert_never

import attrs
import structlog

from motet.actors.faults import StepError, describe
from motet.actors.opening import open_row
from motet.actors.snapshots import Snapshots
from motet.channels.device import (
    Abandon,
    Abandoned,
    Chunk,
    Chunked,
    Drop,
    Dropped,
    Export,
    Exported,
    Join,
    JoinFault,
    Opening,
    Part,
    PartRead,
    Restore,
    Restored,
    RowTokens,
    Snapshot,
)
from motet.channels.emitter import TokenLogprob
from motet.channels.namespace import UNNAMED, Namespace
from motet.engine.batch import Batch
from motet.engine.constraints.constraint import Grammars
from motet.engine.group import Group, Observe
from motet.engine.model import Model, check_device
from motet.engine.row import Row, Sampled
from motet.engine.state import fresh_copy

log = structlog.get_logger()

Computing: TypeAlias = Chunk | Abandon | Join | Drop | Export | Restore
"""Commands that compute: before one runs, the step in flight is settled."""

Result: TypeAlias = Chunked | Abandoned | JoinFault | Dropped | Exported | Restored


class Executor:
    """The device's state and the meaning of its commands."""

    def __init__(
        self,
        model: Model,
        *,
        snapshots: bool,
        firsts_apart: bool = False,
        grammars: Grammars | None = None,
        namespace: Namespace = UNNAMED,
        part_seconds: float = math.inf,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._keeps = snapshots
        self._firsts_apart = firsts_apart
        self._grammars = grammars
        self._part_seconds = part_seconds
        self._observe = observe
        self._clock = clock
        self._preparing: dict[int, Batch] = {}  # rows of a cohort share one
        self._group = Group(model.module, observe, patience=part_seconds)
        self.snapshots = Snapshots(model, namespace, clock)

    @property
    def width(self) -> int:
        """Rows in the running group."""
        return len(self._group.rows)

    def kv_bytes(self) -> int:
        """Bytes of the rows' caches, prepared and running; snapshots are not counted."""
        batches = {id(batch): batch for batch in self._preparing.values()}
        return sum(batch.nbytes for batch in batches.values()) + self._group.batch.nbytes

    # --- commands ---

    def execute(self, command: Computing) -> list[Result] | None:
        """Run one command. A fault in it becomes its own result; what else raises is the device's.

        None if only a part of it is done: the same command is to be given again, after a step.
        """
        match command:
            case Chunk(parts):
                return [self._chunk(parts)]
            case Abandon(rows):
                return [self._abandon(row) for row in rows]
            case Join(rows):
                return self._join(rows)
            case Drop(rows):
                return self._drop(rows)
            case Export():
                return [self.snapshots.export(command, busy=self.width > 0)]
            case Restore():
                return [self.snapshots.restore(command)]
            case _:
                assert_never(command)

    # --- preparation ---

    def _chunk(self, parts: tuple[Part, ...]) -> Chunked:
        started = self._clock()
        opened, failed = self._opened(parts)
        read = self._read_together(opened, failed) if opened else []
        seconds = self._clock() - started
        kept = {part.row: self._keep(part.row) for part in read if part.keep}
        ending = [part for part in read if part.last]
        results = {part.row: PartRead(part.row) for part in read} | failed
        alone = [part for part in ending if self._resumed(part.row)]
        together = [part for part in ending if part not in alone]
        if together:
            results |= self._begin_together(together)
        for part in alone:
            results[part.row] = self._begin_past_the_fault(part)
        told = (attrs.evolve(results[part.row], kept=kept.get(part.row)) for part in parts)
        return Chunked(tuple(told), seconds)

    def _keep(self, number: int) -> Snapshot | None:
        """A snapshot of a row that goes on being read. Without one it goes on too."""
        try:
            batch = self._preparing[number]
            caches = batch.extract(number) if batch.merged else fresh_copy(batch.caches)
            return self._store(caches, batch.row(number).fed)
        except Exception as error:
            log.error("no snapshot of a prefix", request=number, error=describe(error))
            return None

    def _opened(self, parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], dict[int, PartRead]]:
        """Open the rows that are new; those that could be, and the faults of the others."""
        opened, failed = [], {}
        for part in parts:
            try:
                if part.opening is not None:
                    self._preparing[part.row] = self._open(part.opening)
                opened.append(part)
            except Exception as error:
                failed[part.row] = self._fail(part.row, error)
        return tuple(opened), failed

    def _read_together(self, parts: tuple[Part, ...], failed: dict[int, PartRead]) -> list[Part]:
        """Read the parts in one forward; if that fails, one by one, to see whose fault it is.

        Returns:
            The parts that were read; the faults of the others are put into ``failed``.
        """
        fresh, going_on = self._fresh(parts)
        if fresh and going_on:
            return self._read_together(fresh, failed) + self._read_together(going_on, failed)
        before: Batch | None = None
        try:
            batch, parts = self._gathered(parts)
            before = batch.checkpoint() if len(parts) > 1 else None
            if any(part.reading for part in parts):
                batch.read(self._model.module, [part.reading for part in parts])
            return list(parts)
        except Exception as error:
            if before is None:
                failed |= {part.row: self._fail(part.row, error) for part in parts}
                return []
            parted = self._part_all(before, parts, failed)
            return [part for one in parted for part in self._read_together((one,), failed)]

    def _fresh(self, parts: Sequence[Part]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Parts of rows that hold nothing yet, if they must be fed apart; and the others."""
        fresh = [p for p in parts if self._firsts_apart and not self._preparing[p.row].row(p.row).fed]
        return tuple(fresh), tuple(part for part in parts if part not in fresh)

    def _part_all(self, batch: Batch, parts: Sequence[Part], failed: dict[int, PartRead]) -> list[Part]:
        """Every row as it was before a forward that failed, each a batch of its own.

        Where memory ran out this may fail too: then it is that row's fault, and not the device's.
        """
        parted = []
        for part in parts:
            try:
                self._preparing[part.row] = self._alone(batch, part.row)
                parted.append(part)
            except Exception as error:
                self._preparing.pop(part.row, None)
                failed[part.row] = PartRead(part.row, error=describe(error))
        return parted

    def _gathered(self, parts: tuple[Part, ...]) -> tuple[Batch, tuple[Part, ...]]:
        """The rows as one batch, others parted from them; and the parts in its rows' order.

        Rows that are one already stay in their order: to put them into another would copy them all.
        """
        by_row = {part.row: part for part in parts}
        batch = self._preparing[parts[0].row]
        if set(batch.numbers) != by_row.keys():
            batch = Batch.of(self._parted(list(by_row)))
            self._preparing |= dict.fromkeys(by_row, batch)
        return batch, tuple(by_row[number] for number in batch.numbers)

    def _parted(self, numbers: list[int]) -> list[Batch]:
        """Rows as batches of their own, taken out of those that they were in."""
        parted, shared = [], dict[int, tuple[Batch, list[int]]]()
        for number in numbers:
            batch = self._preparing[number]
            if batch.merged:
                parted.append(self._alone(batch, number))
                shared.setdefault(id(batch), (batch, []))[1].append(number)
            else:
                parted.append(batch)
        for batch, gone in shared.values():
            batch.drop(gone)
        return parted

    def _alone(self, batch: Batch, number: int) -> Batch:
        row = batch.row(number)
        if row.fed == 0:  # batch caches that hold nothing have nothing to extract
            return Batch([row], self._model.caches())
        return batch.alone(number)

    def _open(self, opening: Opening) -> Batch:
        if opening.snapshot is None:
            caches = self._model.caches()
        else:
            caches = self.snapshots.copy(opening.snapshot, opening.length)
        return Batch([open_row(opening, self._grammars)], caches)

    def _begin_together(self, ending: list[Part]) -> dict[int, PartRead]:
        """The first tokens of rows whose prompts end, in one forward; one by one if that fails."""
        fresh, going_on = self._fresh(ending)
        if fresh and going_on:
            return self._begin_together(list(fresh)) | self._begin_together(list(going_on))
        try:
            batch, parts = self._gathered(tuple(ending))
            before = batch.checkpoint() if len(ending) > 1 else None
            drawn = [(row.fed, row.session.drawn) for row in batch.rows]
        except Exception as error:
            return {part.row: self._fail(part.row, error) for part in ending}
        try:
            sampled, logits = batch.begin(self._model.module, [part.tokens[-1] for part in parts])
        except Exception as error:
            if before is None:
                return {part.row: self._fail(part.row, error) for part in ending}
            for row, (fed, samples) in zip(batch.rows, drawn, strict=True):
                row.fed, row.session.drawn = fed, samples
            results: dict[int, PartRead] = {}
            for part in self._part_all(before, ending, results):
                results |= self._begin_together([part])
            return results
        if self._observe is not None:
            self._observe(tuple(batch.numbers), logits)
        return self._begun(batch, sampled)

    def _begun(self, batch: Batch, sampled: list[Sampled]) -> dict[int, PartRead]:
        results = {one.row.number: self._first_tokens(batch, [one]) for one in sampled}
        ended = [one.row.number for one in sampled if one.ends]
        for number in ended:
            del self._preparing[number]
        batch.drop(ended)
        return results

    def _first_tokens(self, batch: Batch, sampled: list[Sampled]) -> PartRead:
        """What is told of a row's tokens, of which the last may end it."""
        row, finish = sampled[-1].row, sampled[-1].finish
        if sampled[-1].fault is not None:
            return PartRead(row.number, error=sampled[-1].fault)
        snapshot = None
        if finish is not None and self._keeps:
            snapshot = self._store(batch.extract(row.number), row.fed)
        tokens = tuple(one.token for one in sampled)
        return PartRead(row.number, tokens, finish, snapshot, logprobs=_logprobs(sampled))

    def _resumed(self, number: int) -> bool:
        return self._preparing[number].row(number).made > 0

    def _begin_past_the_fault(self, part: Part) -> PartRead:
        """A recovered row's next tokens, drawn alone.

        Two, for steps are pipelined: the one that failed may have been the one behind the next.
        """
        told: list[Sampled] = []
        try:
            batch, _ = self._gathered((part,))
            feed, ended = part.tokens[-1], False
            while len(told) < 2 and not ended:
                (sampled,), logits = batch.begin(self._model.module, [feed])
                if self._observe is not None:
                    self._observe((part.row,), logits)
                told.append(sampled)
                feed, ended = sampled.token, sampled.ends
            read = self._first_tokens(batch, told)
            if ended:
                self._take_out(part.row)
            return read
        except Exception as error:
            return self._fail(part.row, error)

    def _fail(self, number: int, error: Exception) -> PartRead:
        if number in self._preparing:
            self._take_out(number)
        return PartRead(number, error=describe(error))

    def _take_out(self, number: int) -> None:
        self._preparing.pop(number).drop([number])

    def _abandon(self, number: int) -> Abandoned:
        batch = self._preparing.get(number)
        if batch is None:
            return Abandoned(number, None)
        row = batch.row(number)
        snapshot = None
        if row.fed and self._keeps:
            snapshot = self._store(batch.extract(number), row.fed)
        self._take_out(number)
        return Abandoned(number, snapshot)

    # --- joining and leaving ---

    def _join(self, numbers: tuple[int, ...]) -> list[Result] | None:
        faults: list[Result] = []
        while left := [number for number in numbers if number in self._preparing]:
            batch = self._preparing[left[0]]
            try:
                if not self._group.join(batch, math.inf if faults else self._part_seconds):
                    return None
            except Exception as error:
                faults.append(JoinFault(tuple(batch.numbers), describe(error)))
            for number in batch.numbers:
                del self._preparing[number]
        return faults

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
            check_device()
            return StepError(rows, describe(error))

    def _take_out_ended(self, sampled: list[Sampled]) -> list[RowTokens]:
        results = []
        ended = []
        for one in sampled:
            number, snapshot = one.row.number, None
            if one.ends:
                ended.append(number)
            if one.fault is not None:
                results.append(RowTokens(number, (), error=one.fault))
                continue
            if one.finish is not None:
                snapshot = self._snapshot_of(one.row)
            results.append(RowTokens(number, (one.token,), one.finish, snapshot, _logprobs([one])))
        if ended:
            self._group.drop(ended)
        return results

    # --- snapshots ---

    def _snapshot_of(self, row: Row) -> Snapshot | None:
        if not self._keeps:
            return None
        return self._store(self._group.batch.extract(row.number), row.fed)

    def _store(self, caches: list[object], length: int) -> Snapshot | None:
        return self.snapshots.store(caches, length) if self._keeps else None


def _logprobs(sampled: list[Sampled]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(*one.logprob) for one in sampled if one.logprob is not None)
