"""A row that gives way on a real engine: its stream pauses, and says what it says undisturbed."""

import pytest

import families
import motet
from motet.actors.system import Settings, open_system
from test_containment import check_whole, told, wait_empty

LIMIT = 300
PROMPT, OTHER = families.prompts((30, 9), seed=2)


async def background(engine: motet.Engine, *, disturbed: bool, seed: int = 4) -> list[motet.Event]:
    """A background row's events; if it is to be disturbed an interactive row comes when it has begun."""
    events: list[motet.Event] = []
    options = {"max_tokens": LIMIT, "temperature": 1.0, "seed": seed}
    async with engine.generate(PROMPT, priority="background", **options) as stream:
        async for event in stream:
            if disturbed and not events:
                assert isinstance((await told(engine, OTHER, 5))[-1], motet.Finished)
            events.append(event)
    return events


@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mamba", "qwen3_5"])
async def test_a_row_that_gives_way_says_what_it_says_undisturbed(family: str, cache: int) -> None:
    settings = Settings(batch=2, prompt_cache_bytes=cache)
    async with open_system(families.loader(family), settings) as engine:
        alone = await background(engine, disturbed=False)
        async with engine.generate([7, 8, 9], max_tokens=1500) as holder:  # in the reserved place
            await anext(holder)
            events = await background(engine, disturbed=True)
        assert engine.statistics()["batch"]["displaced_rows"] == 1
        check_whole(events, alone)
        await wait_empty(engine)


async def test_with_a_batch_of_one_a_background_row_gives_way_too() -> None:
    async with open_system(families.loader("llama"), Settings(batch=1)) as engine:
        alone = await background(engine, disturbed=False)
        check_whole(await background(engine, disturbed=True), alone)
        assert engine.statistics()["batch"]["displaced_rows"] == 1
        await wait_empty(engine)
