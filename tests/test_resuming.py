"""Streams that outlive their readers: who may take them up, and when they are let go."""

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import families
import motet
from motet.actors.system import Settings
from motet.engine.projection import RowLength
from scripted import STEP_TIME, ScriptedSystem, scripted_projection, scripted_system
from test_containment import wait_empty

WINDOW = 1.0
LONG = 150  # tokens, at 50 a second

PROMPTS = [tuple(prompt) for prompt in families.prompts((20,) * 8)]


@contextlib.asynccontextmanager
async def running(**options: Any) -> AsyncIterator[ScriptedSystem]:
    """A system that must be empty when the block is over."""
    async with scripted_system(**{"prompt_cache_bytes": 0, "resume_window": WINDOW, **options}) as system:
        yield system
        await trio.sleep(WINDOW + 0.5)
        if not system.engine.over.is_set():
            await wait_empty(system.engine)
            assert system.engine.statistics()["batch"]["kv_projected_bytes"] == 0
            assert len(system.device.group) == len(system.device.preparing) == 0


def requests(*rows: int, limit: int = 20) -> list[motet.Request]:
    return [motet.Request(PROMPTS[row], max_tokens=limit) for row in rows]


async def lost(
    system: ScriptedSystem, name: str, rows: Sequence[int] = (0,), *, after: int = 3, limit: int = LONG
) -> None:
    """Begin a stream, read some of it, and leave."""
    async with system.engine.open_resumable(requests(*rows, limit=limit), name, name.upper()) as stream:
        for _ in range(after):
            await anext(stream)


async def whole(system: ScriptedSystem, name: str) -> list[motet.Event]:
    async with system.engine.take_up(name) as taken:
        assert taken.label == name.upper()
        return [event async for event in taken.stream]


def by_row(events: list[motet.Event]) -> list[motet.Event]:
    """The rows' events, each row's in their order."""
    return sorted(events, key=lambda event: event.index)


async def is_gone(system: ScriptedSystem, name: str) -> bool:
    try:
        async with system.engine.take_up(name):
            return False
    except motet.StreamGone:
        return True


def live(system: ScriptedSystem) -> int:
    return len(system.device.group) + len(system.device.preparing)


async def settled(system: ScriptedSystem) -> int:
    """Rows that live, when what was let go has left."""
    await trio.sleep(5 * STEP_TIME)
    return live(system)


@pytest.mark.parametrize("after", [0, 1, 19])
@pytest.mark.parametrize("rows", [(0,), (0, 1, 2)])
async def test_a_stream_taken_up_has_all_events_once(
    rows: tuple[int, ...], after: int, autojump_clock: MockClock
) -> None:
    async with running() as system:
        async with system.engine.open_rows(requests(*rows)) as stream:
            undisturbed = by_row([event async for event in stream])
        await lost(system, "a", rows, after=after, limit=20)
        told = await whole(system, "a")
        assert by_row(told) == undisturbed
        assert await whole(system, "a") == told  # and again, within a window of the last reader


async def test_it_runs_on_while_nobody_reads(autojump_clock: MockClock) -> None:
    async with running() as system:
        await lost(system, "a")
        await trio.sleep(WINDOW - 0.1)
        async with system.engine.take_up("a") as taken:
            assert taken.sent > 20
            with trio.fail_after(LONG * STEP_TIME):
                assert isinstance([event async for event in taken.stream][-1], motet.Finished)


async def test_when_the_window_is_over_its_rows_are_withdrawn(autojump_clock: MockClock) -> None:
    async with running() as system:
        await lost(system, "a")
        await trio.sleep(WINDOW - 0.5)
        assert live(system) == 1
        await trio.sleep(1)
        assert live(system) == 0 and await is_gone(system, "a")
        assert system.engine.gauges.resuming.let_go == 1


async def test_each_reader_that_leaves_opens_the_window_anew(autojump_clock: MockClock) -> None:
    async with running() as system:
        await lost(system, "a")
        for _ in range(2):
            await trio.sleep(WINDOW - 0.5)
            assert not await is_gone(system, "a")
        await trio.sleep(WINDOW + 0.5)
        assert await is_gone(system, "a")


async def test_what_has_ended_is_kept_for_the_window_and_holds_no_seat(autojump_clock: MockClock) -> None:
    async with running() as system:
        await lost(system, "a", after=21, limit=20)
        assert await settled(system) == 0 and system.engine.gauges.resuming.detached_rows == 0
        assert isinstance((await whole(system, "a"))[-1], motet.Finished)
        await trio.sleep(WINDOW + 0.5)
        assert await is_gone(system, "a") and system.engine.gauges.resuming.bytes == 0


async def test_past_the_cap_of_rows_the_first_that_was_left_goes(autojump_clock: MockClock) -> None:
    async with running(resume_rows=3) as system:
        await lost(system, "a")
        await lost(system, "b", (1, 2))
        assert await settled(system) == 3
        await lost(system, "c", (3,))
        assert await settled(system) == 3 and await is_gone(system, "a")
        await lost(system, "d", (4,))
        assert await settled(system) == 2 and await is_gone(system, "b")  # whole: it is one stream
        assert not await is_gone(system, "c")


async def test_past_the_cap_of_bytes_the_first_that_was_left_goes(autojump_clock: MockClock) -> None:
    """Also what has ended; and what a stream without a reader goes on to say counts."""
    async with running(resume_bytes=6_000) as system:
        await lost(system, "ended", after=21, limit=20)
        await lost(system, "a")
        await trio.sleep(STEP_TIME)
        assert system.engine.gauges.resuming.detached == 2
        with trio.fail_after(WINDOW - 0.1):
            while live(system):
                await trio.sleep(0.1)
                assert system.engine.gauges.resuming.bytes <= 6_000
        assert await is_gone(system, "ended") and await is_gone(system, "a")


TWO = scripted_projection(Settings(prompt_cache_bytes=0)).needed([RowLength(20, LONG)] * 2)


@pytest.mark.parametrize("options", [{"batch": 2}, {"batch": 4, "kv_budget": TWO + 100}])
async def test_who_waits_gets_the_place_of_a_detached_row(
    options: dict[str, Any], autojump_clock: MockClock
) -> None:
    """A place, or bytes. The first that was left goes, and no more of them than wait."""
    async with running(**options) as system:
        await lost(system, "a")
        await lost(system, "b", (1,))
        assert await settled(system) == 2
        with trio.fail_after(1):
            async with system.engine.generate(PROMPTS[2], max_tokens=LONG) as stream:
                await anext(stream)
                gone = [await is_gone(system, name) for name in "ab"]
                assert gone == [True, False]


async def test_a_row_that_is_left_while_others_wait_goes_for_the_next_that_comes(
    autojump_clock: MockClock,
) -> None:
    async with running(batch=1) as system, trio.open_nursery() as nursery:
        ends: list[motet.Event] = []

        async def wait(row: int) -> None:
            async with system.engine.generate(PROMPTS[row], max_tokens=5) as stream:
                ends.extend([event async for event in stream][-1:])

        async with system.engine.open_resumable(requests(0, limit=LONG), "a", "A") as stream:
            await anext(stream)
            nursery.start_soon(wait, 1)
            await trio.sleep(0.5)
            assert not ends  # who is read is not let go
        nursery.start_soon(wait, 2)
        with trio.fail_after(1):
            while len(ends) < 2:
                await trio.sleep(0.1)


async def test_a_drain_keeps_nothing_for_those_that_have_left(autojump_clock: MockClock) -> None:
    async with running() as system:
        await lost(system, "a")
        await lost(system, "ended", after=21, limit=20)
        async with system.engine.open_resumable(requests(1), "b", "B") as stream:
            await anext(stream)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(system.engine.drain, 100)
                assert await settled(system) == 1  # who is read goes on
                assert await is_gone(system, "a") and await is_gone(system, "ended")
                await anext(stream)
                began = trio.current_time()
                nursery.cancel_scope.cancel()
        # Left while the server drains, it goes at once: the drain does not wait for its window.
        with trio.fail_after(1):
            await system.engine.over.wait()
        assert trio.current_time() - began < 1
        with pytest.raises(motet.StreamGone):
            await whole(system, "b")


async def test_who_reads_is_told_that_the_stream_was_taken_up_elsewhere(autojump_clock: MockClock) -> None:
    """The server has not always seen that a connection is dead."""
    async with running() as system:
        async with system.engine.open_resumable(requests(0), "a", "A") as stream:
            first = await anext(stream)
            async with system.engine.take_up("a") as taken:
                *_, old = [event async for event in stream]
                assert isinstance(old, motet.Failed) and old.code == "stream_taken_up"
                events = [event async for event in taken.stream]
                assert events[0] == first and isinstance(events[-1], motet.Finished)


async def test_a_request_that_is_refused_leaves_nothing(autojump_clock: MockClock) -> None:
    async with running(batch=1, queue_limit=2) as system:
        async with system.engine.open_rows(requests(0, 1, limit=LONG)):
            async with system.engine.open_rows(requests(2, limit=LONG)):
                with pytest.raises(motet.NotTaken):
                    await lost(system, "a", (3,))
                tickets = system.boxes.tickets
                while tickets.statistics().current_buffer_used > 1:
                    tickets.receive_nowait()
                with pytest.raises(motet.NotTaken):  # more rows than there are tickets
                    await lost(system, "b", (4, 5))
            assert await is_gone(system, "a") and await is_gone(system, "b")
        assert system.engine.gauges.resuming.attached == 0


async def test_a_server_that_keeps_none_says_so(autojump_clock: MockClock) -> None:
    async with running(resume_window=0) as system:
        with pytest.raises(motet.InvalidRequest) as refused:
            await lost(system, "a")
        assert refused.value.param == "resumable"


async def test_the_engines_death_ends_its_readers(autojump_clock: MockClock) -> None:
    async with running(device_timeout=1) as system:
        with pytest.raises(motet.EngineDied):
            async with system.engine.open_resumable(requests(0, limit=LONG), "a", "A") as stream:
                await anext(stream)
                system.nursery.cancel_scope.cancel()
                async for _ in stream:
                    pass
        with pytest.raises(motet.StreamGone):
            await whole(system, "a")


def song(events: list[motet.Event]) -> tuple[str, motet.Event]:
    """Text and end: a row that was recovered tells two tokens at once."""
    return "".join(event.text for event in events if isinstance(event, motet.Text)), events[-1]


@pytest.mark.parametrize("seed", range(9))
async def test_whatever_readers_do_texts_are_whole_and_nothing_is_left(
    seed: int, autojump_clock: MockClock
) -> None:
    """Readers that drop, come back, come back too late or never, beside others, faults and a crowd."""
    draw = random.Random(seed)
    options: dict[str, Any] = {"batch": 3, "resume_rows": 4, "resume_bytes": 30_000}
    ends: Counter[str] = Counter()
    async with running(**options) as system:
        engine = system.engine
        whole_of = {}
        for row in range(len(PROMPTS)):
            async with engine.open_rows(requests(row)) as stream:
                whole_of[row] = song([event async for event in stream])

        async def caller(number: int) -> None:
            row, name = draw.randrange(len(PROMPTS)), f"{number}"
            await trio.sleep(draw.random())
            if draw.random() < 0.3:
                async with engine.open_rows(requests(row)) as stream:
                    assert song([event async for event in stream]) == whole_of[row]
                return
            await lost(system, name, (row,), after=draw.randrange(15), limit=20)
            if number in {5, 15}:  # three such would end the engine
                system.device.faults.step = 1
            await trio.sleep(draw.choice([0, draw.random() / 5, draw.random() * 1.5 * WINDOW]))
            try:
                async with engine.take_up(name) as taken:
                    assert song([event async for event in taken.stream]) == whole_of[row]
                    ends["whole"] += 1
            except motet.StreamGone:
                ends["gone"] += 1

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(caller, number)
        assert ends["whole"] and ends["gone"]
    assert engine.gauges.resuming.attached == engine.gauges.resuming.detached == 0
