"""A fault is fatal to the smallest thing that owns it, and to nothing else."""

from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
import pytest
import trio

import families
import motet
from motet.actors import engine as engines
from motet.actors.system import Settings, open_system
from motet.engine.output import Output
from motet.engine.pieces import Piece

GUILTY = 77  # a token that only the guilty prompt holds
PROMPTS = [[3 + (7 * i + j) % 60 for j in range(12 + i)] for i in range(4)]
BAD_PROMPT = [*PROMPTS[0][:6], GUILTY, *PROMPTS[0][6:]]


class Faulty:
    """A model that raises ``error`` when ``when(tokens)`` says so; ``tokens`` is [B, L] as lists."""

    def __init__(self, model: Any, when: Callable[[list[list[int]]], bool], error: BaseException) -> None:
        self._model, self._when, self._error = model, when, error
        self.armed = False

    def __call__(self, tokens: mx.array, **options: Any) -> mx.array:
        if self.armed:
            read: Any = tokens.tolist()
            if self._when(read):
                raise self._error
        return self._model(tokens, **options)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@attrs.define
class Harness:
    """An engine on a faulty model, armed once it is loaded and tested."""

    when: Callable[[list[list[int]]], bool]
    error: BaseException = attrs.Factory(lambda: RuntimeError("injected"))
    model: Faulty | None = None

    def open(self) -> Any:
        def wrap(model: Any) -> Any:
            self.model = Faulty(model, self.when, self.error)
            return self.model

        return open_system(families.loader("llama", wrap=wrap), Settings(prompt_cache_bytes=0))

    def arm(self) -> None:
        assert self.model is not None
        self.model.armed = True

    def disarm(self) -> None:
        assert self.model is not None
        self.model.armed = False


async def told(engine: motet.Engine, prompt: list[int], max_tokens: int = 40) -> list[motet.Event]:
    async with engine.generate(prompt, max_tokens=max_tokens) as stream:
        return [event async for event in stream]


async def all_told(
    engine: motet.Engine, prompts: list[list[int]], max_tokens: int = 40
) -> list[list[motet.Event]]:
    events: list[list[motet.Event]] = [[] for _ in prompts]

    async def one(index: int) -> None:
        events[index] = await told(engine, prompts[index], max_tokens)

    async with trio.open_nursery() as nursery:
        for index in range(len(prompts)):
            nursery.start_soon(one, index)
    return events


def text(events: list[motet.Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, motet.Text))


def check_whole(events: list[motet.Event], alone: list[motet.Event]) -> None:
    """A row that was not hurt: one terminal event, and the text it has alone."""
    assert [type(e) for e in events if not isinstance(e, motet.Text)] == [motet.Finished]
    assert text(events) == text(alone)


async def check_as_new(engine: motet.Engine, alone: list[motet.Event]) -> None:
    """The ledger is empty, and the next request succeeds."""
    check_whole(await told(engine, PROMPTS[1]), alone)
    await wait_empty(engine)


async def wait_empty(engine: motet.Engine) -> None:
    with trio.fail_after(5):
        while True:
            batch = engine.statistics()["batch"]
            if not (batch["active_rows"] or batch["preparing_rows"] or batch["kv_bytes"]):
                return
            await trio.sleep(0.001)


async def test_an_emitters_fault_is_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking(Output):
        def __init__(self, markup: Any, stops: Any = (), after: Any = (), **options: Any) -> None:
            super().__init__(markup, stops, after, **options)
            self._breaks = GUILTY in after

        def push(self, tokens: Any) -> tuple[list[Piece], int]:
            if self._breaks:
                raise RuntimeError("injected")
            return super().push(tokens)

    monkeypatch.setattr(engines, "Output", Breaking)
    async with Harness(lambda _: False).open() as engine:
        alone = [await told(engine, prompt) for prompt in PROMPTS]
        *others, bad = await all_told(engine, [*PROMPTS, BAD_PROMPT])
        assert [type(event) for event in bad] == [motet.Failed]
        assert isinstance(bad[0], motet.Failed) and bad[0].code == "emitter_failed"
        for events, want in zip(others, alone, strict=True):
            check_whole(events, want)
        await check_as_new(engine, alone[1])


async def test_a_preparation_fault_is_its_joiners() -> None:
    harness = Harness(lambda rows: any(GUILTY in row for row in rows))
    async with harness.open() as engine:
        alone = [await told(engine, prompt) for prompt in PROMPTS]
        harness.arm()
        *others, bad = await all_told(engine, [*PROMPTS, BAD_PROMPT])
        assert [type(event) for event in bad] == [motet.Failed]
        assert isinstance(bad[0], motet.Failed) and bad[0].code == "preparation_failed"
        for events, want in zip(others, alone, strict=True):
            check_whole(events, want)
        await check_as_new(engine, alone[1])


async def test_a_step_that_fails_again_and_again_ends_the_engine_and_tells_every_caller() -> None:
    """No row is guilty: each goes on alone, and the next step together fails again; the third is the end."""
    harness = Harness(lambda rows: len(rows[0]) == 1 and len(rows) > 1)
    endings = 0

    async def one(engine: motet.Engine, prompt: list[int]) -> None:
        nonlocal endings
        with pytest.raises(motet.EngineDied):
            await told(engine, prompt, max_tokens=400)
        endings += 1

    with pytest.raises(motet.EngineDied):
        async with harness.open() as engine:
            harness.arm()
            async with trio.open_nursery() as nursery:
                for prompt in PROMPTS:
                    nursery.start_soon(one, engine, prompt)
            await engine.over.wait()
            assert endings == 4 and engine.health == "failed"
            assert engine.gauges.decode.step_faults >= 3


async def test_the_device_threads_death_is_told_to_every_caller() -> None:
    harness = Harness(lambda rows: len(rows) == 4, SystemExit("injected"))
    endings: list[str] = []

    async def one(engine: motet.Engine, prompt: list[int]) -> None:
        try:
            await told(engine, prompt, max_tokens=200)
            endings.append("finished")
        except motet.EngineDied:
            endings.append("died")

    with pytest.raises(motet.EngineDied):
        async with harness.open() as engine:
            harness.arm()
            async with trio.open_nursery() as nursery:
                for prompt in PROMPTS:
                    nursery.start_soon(one, engine, prompt)
            assert endings == ["died"] * 4
            assert engine.health == "failed"
            with pytest.raises(motet.EngineDied):
                await told(engine, PROMPTS[0])


async def test_loadings_error_is_raised_as_it_was() -> None:
    def load() -> Any:
        raise FileNotFoundError("no such model")

    with pytest.raises(FileNotFoundError):
        async with open_system(load, Settings()):
            raise AssertionError("never reached")


async def test_the_bodys_error_is_raised_as_it_was() -> None:
    with pytest.raises(KeyError):
        async with open_system(families.loader("llama"), Settings()):
            raise KeyError("mine")
