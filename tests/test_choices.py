"""Several rows of one request: the prompt is read once, and each row is what it would be alone."""

from typing import Any

import attrs
import pytest

import families
import motet
from motet.actors.joiner import Joiner
from motet.actors.sharing import Sharing
from motet.actors.system import Settings, open_system
from motet.channels.prefill import Lease
from motet.channels.request import Sampling, Work

FAMILIES = ["llama", "gemma3_text", "qwen3_5"]  # full, rotating, recurrent
LENGTH = 40  # of a prompt: shorter than what strangers wait for
ROWS, TOKENS = 5, 12


@attrs.define
class Told:
    texts: list[str]
    usages: list[motet.Usage]
    read: int
    """Prompt tokens that were computed."""


async def told(engine: motet.Engine, prompt: list[int], n: int = 1, **options: Any) -> Told:
    texts = [""] * n
    usages: dict[int, motet.Usage] = {}
    before = engine.statistics()["tokens"]["prompt"]
    async with engine.generate(prompt, max_tokens=TOKENS, n=n, **options) as stream:
        async for event in stream:
            if isinstance(event, motet.Text):
                texts[event.index] += event.text
            else:
                assert isinstance(event, motet.Finished), event
                usages[event.index] = event.usage
    read = engine.statistics()["tokens"]["prompt"] - before
    return Told(texts, [usages[i] for i in range(n)], read)


@pytest.mark.parametrize("length", [1, 2, LENGTH, 300])
@pytest.mark.parametrize("family", FAMILIES)
async def test_each_row_is_what_it_is_alone_and_the_prompt_is_read_once(family: str, length: int) -> None:
    prompt = families.prompts((length,), seed=length)[0]
    drawn = {"temperature": 1.5, "seed": 7}
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=0)) as engine:
        alone = [(await told(engine, prompt, temperature=1.5, seed=7 + i)).texts[0] for i in range(ROWS)]
    async with open_system(families.loader(family), Settings()) as engine:
        together = await told(engine, prompt, ROWS, **drawn)
        again = await told(engine, prompt, ROWS, **drawn)
    assert together.texts == again.texts == alone
    assert len(set(alone)) == ROWS
    assert together.read == length + ROWS - 1
    assert [usage.prompt_tokens for usage in together.usages] == [length] * ROWS
    assert [usage.cached_tokens for usage in together.usages] == [0] + [length - 1] * (ROWS - 1)


async def test_the_prompt_is_read_once_while_others_run_and_when_there_is_not_a_place_for_each() -> None:
    """The first's only chunk is on its way before the others come."""
    prompt = families.prompts((LENGTH,), seed=3)[0]
    async with open_system(families.loader("qwen3_5"), Settings(batch=4)) as engine:
        async with engine.generate([5, 6, 7], max_tokens=200) as other:
            await anext(other)
            assert (await told(engine, prompt, 8)).read == LENGTH + 7


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_snapshots_the_rows_are_read_as_a_cohort(family: str) -> None:
    prompt = families.prompts((LENGTH,), seed=5)[0]
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=0)) as engine:
        greedy = await told(engine, prompt, ROWS)
    assert greedy.read == ROWS * LENGTH and len(set(greedy.texts)) == 1


async def test_rows_without_a_seed_differ() -> None:
    async with open_system(families.loader("llama"), Settings()) as engine:
        some = await told(engine, [5, 6, 7], 4, temperature=1.5)
        more = await told(engine, [5, 6, 7], 4, temperature=1.5)
    assert len({*some.texts, *more.texts}) == 8


@pytest.mark.parametrize("n", [0, 9])
async def test_so_many_rows_are_refused(n: int) -> None:
    async with open_system(families.loader("llama"), Settings()) as engine:
        with pytest.raises(motet.InvalidRequest) as caught:
            await told(engine, [5], n)
    assert caught.value.param == "n"


def joiner(row: int, siblings: int, reach: int = 0, *, keeps: bool = False) -> Joiner:
    tokens = tuple(range(20))
    work = Work(row, tokens, 9, Sampling(), frozenset(), siblings=siblings)
    one = Joiner(work, None, lease=Lease(row, None, 0), reach=reach)  # type: ignore[arg-type]
    one.stops.update({19} if keeps else ())
    return one


@pytest.mark.parametrize(
    ("reader", "waits"),
    [
        (joiner(1, 1, keeps=True), True),
        (joiner(1, 1, reach=20, keeps=True), True),
        (joiner(1, 1, reach=20), False),
        (joiner(1, 3, keeps=True), False),
        (joiner(1, 0), False),
    ],
)
def test_siblings_wait_for_the_first_at_any_length_while_its_snapshot_comes(
    reader: Joiner, waits: bool
) -> None:
    sharing = Sharing(cuts=False)
    assert sharing.wait(joiner(2, 1), [reader]) == waits
    assert sharing.reached(1, 20) == [2] * waits
