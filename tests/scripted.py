"""A scripted device: speaks the device's protocol in virtual time, with no model behind it.

It holds every actor to the protocol: a command about a row or a snapshot that it does not have, a second
chunk while one is outstanding, a snapshot freed while it is leased, rows and snapshots beyond the budget, all
raise ProtocolError.
"""

import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import trio

import families
from motet.actors.engine import Engine, EngineInfo
from motet.actors.system import Loaded, Mailboxes, Settings, start_actors
from motet.channels.device import (
    Abandon,
    Abandoned,
    Chunk,
    Chunked,
    Command,
    Drop,
    Dropped,
    Forget,
    Join,
    JoinFault,
    Opening,
    Part,
    PartRead,
    RowTokens,
    Shutdown,
    Snapshot,
    Step,
    StepFault,
    Stepped,
)
from motet.channels.emitter import Finish
from motet.channels.gauges import Gauges
from motet.channels.mailbox import post
from motet.channels.request import Work
from motet.engine.constraints.constraint import Grammars
from motet.engine.joining import MOST_ROOM
from motet.engine.model import ModelFacts
from motet.engine.projection import Activations, Projection, RowLength
from motet.engine.selftest import SelfTest

CHUNK_TIME = 0.05
STEP_TIME = 0.02
BYTES_A_TOKEN = 10
UNBOUNDED = 1 << 40


class ProtocolError(AssertionError):
    """An actor said what it must not."""


@functools.cache
def _letters() -> tuple[int, ...]:
    return tuple(families.tokenizer().encode(letter)[0] for letter in "abcdefghijklmnopqrstuvwxyz")


def token_of(work: Work, index: int) -> int:
    """The token that the script gives a row at an index: a letter."""
    return _letters()[(sum(work.prompt) + 7 * index) % 26]


Script = Callable[[Work, int], int]
"""The token that a row is given at an index."""


@attrs.define(eq=False)
class ScriptedRow:
    work: Work
    script: Script
    read: int
    generated: int = 0
    """Tokens it had when it was opened."""
    made: int = 0

    @property
    def held(self) -> int:
        return self.read + self.made - self.generated

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is to be read."""
        return self.work.prompt + tuple(self.script(self.work, i) for i in range(self.generated))

    def draw(self) -> int:
        """Its next token."""
        self.made += 1
        return self.script(self.work, self.made - 1)

    def finish(self, last: int) -> Finish | None:
        """Whether it ends with this token."""
        if last in self.work.stop_tokens:
            return "stop"
        return "length" if self.made == self.work.limit else None


@attrs.define(eq=False)
class Faults:
    """How many of the next commands of each kind are to fail."""

    chunk: int = 0
    join: int = 0
    step: int = 0


class ScriptedDevice:
    """The device's part, played by a Trio task."""

    def __init__(
        self,
        boxes: Mailboxes,
        gauges: Gauges,
        projection: Projection,
        budget: int,
        script: Script = token_of,
    ) -> None:
        self._projection, self._budget = projection, budget
        self._boxes = boxes
        self._gauges = gauges.device
        self._script = script
        self._commands: deque[Command] = deque()
        self._news = trio.Event()
        self.faults = Faults()
        self.preparing: dict[int, ScriptedRow] = {}
        self.group: dict[int, ScriptedRow] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.ended = False
        self._granted = 0
        self._handles = 0
        self._chunks_outstanding = 0

    def send_nowait(self, value: Command, /) -> None:
        if isinstance(value, Chunk):
            self._chunks_outstanding += 1
            if self._chunks_outstanding > 1:
                raise ProtocolError("two chunks outstanding")
        self._commands.append(value)
        self._news.set()

    async def run(self) -> None:
        stepped_last = True
        while True:
            due = self._granted > 0 and self.group
            if due and (not stepped_last or not self._commands):
                await self._step()
                stepped_last = True
            elif self._commands:
                command = self._commands.popleft()
                if isinstance(command, Shutdown):
                    self.ended = True
                    return
                await self._execute(command)
                stepped_last = isinstance(command, Step | Forget) and stepped_last
            else:
                self._news = trio.Event()
                await self._news.wait()
            self._gauges.kv_bytes = BYTES_A_TOKEN * sum(row.held for row in self._rows())
            self._check_budget()

    def _rows(self) -> list[ScriptedRow]:
        return [*self.preparing.values(), *self.group.values()]

    def _check_budget(self) -> None:
        """What its rows may still need, and what it keeps: never more than the budget."""
        lengths = [RowLength(len(row.work.prompt), row.work.limit) for row in self._rows()]
        kept = sum(snapshot.nbytes for snapshot in self.snapshots.values())
        if self._projection.needed(lengths) + kept > self._budget:
            raise ProtocolError(f"more than the budget of {self._budget} bytes")

    async def _execute(self, command: Command) -> None:
        match command:
            case Step(count):
                self._granted += count
            case Forget(handles):
                for handle in handles:
                    self.snapshots.pop(handle)
            case Chunk():
                await self._chunk(command)
            case Abandon(rows):
                for row in rows:
                    gone = self.preparing.pop(row, None)
                    snapshot = self._snapshot(gone.read) if gone and gone.read else None
                    post(self._boxes.to_prefill, Abandoned(row, snapshot))
            case Join(rows):
                self._join(rows)
            case Drop(rows):
                for row in rows:
                    gone = self.group.pop(row, None)
                    snapshot = self._snapshot(gone.held) if gone else None
                    post(self._boxes.to_decode, Dropped(row, snapshot))

    async def _chunk(self, command: Chunk) -> None:
        await trio.sleep(CHUNK_TIME)
        self._chunks_outstanding -= 1
        post(self._boxes.to_prefill, Chunked(tuple(map(self._part, command.parts)), CHUNK_TIME))

    def _part(self, part: Part) -> PartRead:
        if part.opening is not None:
            self._open(part.row, part.opening)
        row = self.preparing[part.row]
        if self.faults.chunk:
            self.faults.chunk -= 1
            del self.preparing[part.row]
            return PartRead(part.row, error="scripted")
        expected = row.tokens[row.read : row.read + len(part.tokens)]
        if part.tokens != expected or part.last != (row.read + len(expected) == len(row.tokens)):
            raise ProtocolError(f"wrong part {part}")
        row.read += len(part.reading)
        kept = self._snapshot(row.read) if part.keep else None
        if not part.last:
            return PartRead(part.row, kept=kept)
        row.read += 1
        tokens = []
        for _ in range(2 if row.generated else 1):
            if row.made < row.work.limit and not (tokens and row.finish(tokens[-1])):
                tokens.append(row.draw())
        finish, snapshot = row.finish(tokens[-1]), None
        if finish is not None:
            del self.preparing[part.row]
            snapshot = self._snapshot(row.held - 1)
        return PartRead(part.row, tuple(tokens), finish, snapshot, kept)

    def _open(self, number: int, opening: Opening) -> None:
        if number in self.preparing or number in self.group:
            raise ProtocolError("a row opened twice")
        if opening.snapshot is not None and opening.snapshot not in self.snapshots:
            raise ProtocolError("a leased snapshot was freed")
        made = len(opening.generated)
        self.preparing[number] = ScriptedRow(opening.work, self._script, opening.length, made, made)

    def _join(self, numbers: tuple[int, ...]) -> None:
        rows = {number: self.preparing.pop(number) for number in numbers}
        if self.faults.join:
            self.faults.join -= 1
            post(self._boxes.to_decode, JoinFault(numbers, "scripted"))
        else:
            self.group |= rows

    async def _step(self) -> None:
        rows = list(self.group)
        await trio.sleep(STEP_TIME)
        self._granted -= 1
        if self.faults.step:
            self.faults.step -= 1
            self.group.clear()
            post(self._boxes.to_decode, StepFault(tuple(rows), 1, "scripted"))
            return
        told = []
        for number in rows:
            row = self.group[number]
            token = row.draw()
            finish, snapshot = row.finish(token), None
            if finish is not None:
                del self.group[number]
                snapshot = self._snapshot(row.held - 1)
            told.append(RowTokens(number, (token,), finish, snapshot))
        post(self._boxes.to_decode, Stepped(tuple(told), 1))

    def _snapshot(self, length: int) -> Snapshot:
        self._handles += 1
        snapshot = Snapshot(self._handles, length, BYTES_A_TOKEN * length, trimmable=True)
        self.snapshots[self._handles] = snapshot
        return snapshot


def scripted_info(settings: Settings) -> EngineInfo:
    """What a load-time self-test might have found."""
    facts = ModelFacts("scripted", families.VOCABULARY, families.CONTEXT, 0, "float32")
    tested = SelfTest(None, None, None, None, True, True, step_seconds=STEP_TIME, token_seconds=0.001)
    projection, budget = scripted_projection(settings), scripted_budget(settings)
    return EngineInfo(facts, tested, settings.batch, settings.batch, budget, projection)


def scripted_projection(settings: Settings) -> Projection:
    """What a row costs that keeps BYTES_A_TOKEN for each token, and nothing else."""
    most_room = MOST_ROOM if settings.batch > 1 else 0
    keeps = settings.prompt_cache_bytes != 0
    return Projection(0, BYTES_A_TOKEN, (), most_room, settings.prefill_step_size, Activations(), 0, keeps)


def scripted_budget(settings: Settings) -> int:
    """As configured; else as good as unbounded."""
    return UNBOUNDED if settings.kv_budget is None else settings.kv_budget


@attrs.define
class ScriptedSystem:
    """All actors of a real system, on a scripted device."""

    engine: Engine
    device: ScriptedDevice
    boxes: Mailboxes
    nursery: trio.Nursery


@contextlib.asynccontextmanager
async def scripted_system(
    script: Script = token_of, tokenizer: Any = None, **options: object
) -> AsyncIterator[ScriptedSystem]:
    """The block may drain the engine; on leaving, what still runs is cancelled."""
    settings = Settings(**options)  # type: ignore[arg-type]
    boxes, gauges = Mailboxes(settings), Gauges()
    projection, budget = scripted_projection(settings), scripted_budget(settings)
    device = ScriptedDevice(boxes, gauges, projection, budget, script)
    tokenizer = tokenizer or families.tokenizer()
    loaded = Loaded(scripted_info(settings), tokenizer, Grammars(tokenizer, families.VOCABULARY))

    async def run(task_status: trio.TaskStatus[ScriptedSystem]) -> None:
        async with trio.open_nursery() as actors:
            actors.start_soon(device.run)
            engine = start_actors(actors, settings, boxes, device, loaded, gauges)
            task_status.started(ScriptedSystem(engine, device, boxes, actors))
        engine.over.set()

    async with trio.open_nursery() as nursery:
        yield await nursery.start(run)
        nursery.cancel_scope.cancel()
