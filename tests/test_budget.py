"""The budget on a real model, by MLX's own counters: peak less the loaded baseline.

The model is small but for its caches: 16 KiB a token. Allocation failure can end the process, so nothing here
waits for one: what is asserted is that the prediction held.
"""

import math
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import mlx.core as mx
import pytest
import trio

import families
import motet
from motet.actors.system import Settings, open_system
from motet.engine import measuring
from motet.engine.projection import HEADROOM, RowLength

CHUNK = 256
PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The model, and no row that ends by chance."""
    config = dict(
        families.CONFIGS["llama"],
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
    )
    monkeypatch.setitem(families.CONFIGS, "wide", config)
    monkeypatch.setattr(families.tokenizer(), "eos_token_ids", set())
    yield


def budget_of(*rows: RowLength, keeps: bool = False) -> int:
    """What these rows need together, and a hundredth: measured again, a chunk costs not quite the same."""
    model = families.loader("wide")()[0]
    return int(1.01 * measuring.measure(model, batched=True, chunk=CHUNK, keeps=keeps).needed(rows))


@attrs.define
class Meter:
    """What MLX counted, less the loaded baseline; sampled on the device thread at each forward's logits."""

    baseline: int = 0
    most_active: int = 0
    most_rows: int = 0

    forward: trio.Event = attrs.Factory(trio.Event)
    """Set at the next forward."""
    token: trio.lowlevel.TrioToken = attrs.Factory(trio.lowlevel.current_trio_token)

    def observe(self, rows: tuple[int, ...], _: mx.array) -> None:
        self.token.run_sync_soon(self.forward.set)
        self.most_active = max(self.most_active, mx.get_active_memory() - self.baseline)
        self.most_rows = max(self.most_rows, len(rows))

    async def forwards(self, count: int) -> None:
        """Wait for so many."""
        for _ in range(count):
            self.forward = trio.Event()
            await self.forward.wait()

    def start(self) -> None:
        self.baseline = mx.get_active_memory()
        self.most_active = self.most_rows = 0
        mx.reset_peak_memory()

    @property
    def peak(self) -> int:
        return mx.get_peak_memory() - self.baseline


@asynccontextmanager
async def metered(**options: Any) -> AsyncIterator[tuple[motet.Engine, Meter]]:
    """An engine on the model; at the end the ledger must be at zero."""
    meter = Meter()
    settings = Settings(prefill_step_size=CHUNK, **options)
    async with open_system(families.loader("wide"), settings, observe=meter.observe) as engine:
        meter.start()
        yield engine, meter
        await engine.drain(30)
        assert engine.death is None
        batch = engine.statistics()["batch"]
        assert batch["kv_projected_bytes"] == batch["pending_rows"] == 0


async def generate(
    engine: motet.Engine, number: int, length: RowLength, leave_after: float = math.inf
) -> motet.Finished | None:
    """One caller: how its row ended, or None if it left first."""
    with trio.move_on_after(leave_after):
        prompt = families.prompts((length.prompt,), number)[0]
        async with engine.generate(prompt, max_tokens=length.limit) as stream:
            async for event in stream:
                last = event
        assert isinstance(last, motet.Finished)
        assert last.usage.completion_tokens == length.limit
        return last
    return None


async def sixteen(engine: motet.Engine, length: RowLength) -> None:
    """Sixteen callers at once, every third leaving at random; all others get all their tokens."""
    draw = random.Random(5)
    ended: dict[int, motet.Finished | None] = {}

    async def one(number: int, leave_after: float) -> None:
        ended[number] = await generate(engine, number, length, leave_after)

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(one, number, draw.uniform(0, 3) if number % 3 == 0 else math.inf)
    assert all(ended[number] for number in range(16) if number % 3)


@pytest.mark.parametrize("cache", [0, PLENTY], ids=["rows alone", "with a prompt cache"])
async def test_sixteen_requests_stay_within_the_bytes_of_four(cache: int) -> None:
    length = RowLength(300, 120)
    budget = budget_of(*[length] * 4, keeps=cache > 0)
    async with metered(batch=16, kv_budget=budget, prompt_cache_bytes=cache) as (engine, meter):
        await sixteen(engine, length)
        assert meter.peak <= budget + HEADROOM and meter.most_active <= budget + HEADROOM
        assert meter.peak >= budget / 3  # the budget is used
        assert meter.most_rows <= 4


async def test_without_the_budget_they_do_not() -> None:
    """What the test above would see if nobody kept the budget."""
    length = RowLength(300, 120)
    budget = budget_of(*[length] * 4)
    async with metered(batch=16, kv_budget=PLENTY, prompt_cache_bytes=0) as (engine, meter):
        await sixteen(engine, length)
        assert meter.peak > budget + HEADROOM


async def test_a_short_row_beside_a_long_one_counts_as_long_and_the_long_ones_memory_goes_with_it() -> None:
    long, short = RowLength(3900, 100), RowLength(50, 600)
    budget = budget_of(long, short, keeps=True)
    # With so much patience a chunk is as large as it can be, and the short row gets few steps meanwhile.
    options = {"max_decode_stall": 30.0, "kv_budget": budget, "prompt_cache_bytes": PLENTY}
    async with metered(batch=8, **options) as (engine, meter):
        prompts = families.prompts((long.prompt, short.prompt))
        async with engine.generate(prompts[1], max_tokens=short.limit) as second:
            async with engine.generate(prompts[0], max_tokens=long.limit) as first:
                assert isinstance([event async for event in first][-1], motet.Finished)
            assert meter.most_rows == 2 and budget / 3 <= meter.peak <= budget + HEADROOM
            await meter.forwards(2)  # the long row's memory goes with the first
            meter.most_active = 0
            assert isinstance([event async for event in second][-1], motet.Finished)
        kept = engine.statistics()["prompt_cache"]["bytes"]
        assert 0 < meter.most_active <= kept + engine.info.projection.needed([short]) + HEADROOM
        assert meter.peak <= budget + HEADROOM


async def test_a_row_that_cannot_fit_alone_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = RowLength(300, 120)
    # Measured once: on a busy machine a chunk seems to cost some hundredths more or less.
    projection = measuring.measure(families.loader("wide")()[0], batched=True, chunk=CHUNK, keeps=True)
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: projection)
    budget = projection.needed([length])
    async with metered(batch=4, kv_budget=budget) as (engine, _):
        assert await generate(engine, 1, length)
        with pytest.raises(motet.InvalidRequest) as refused:
            await generate(engine, 2, RowLength(300, 500))
        needed = engine.info.projection.needed([RowLength(300, 500)])
        assert (refused.value.param, refused.value.code) == ("max_tokens", "kv_budget_exceeded")
        for number in (300, 500, needed, budget):
            assert str(number) in refused.value.message
        assert engine.statistics()["batch"]["kv_budget_bytes"] == budget
