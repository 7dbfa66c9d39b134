"""A seed makes sampling repeatable, whoever else is in the batch."""

from typing import Any

import pytest
import trio

import families
import motet
from motet.actors.request import Request
from motet.actors.system import Settings, open_system
from oracle import Trace

TOKENS = 60
SUBJECT = 3  # its place among the neighbours
PROMPTS = families.prompts((12, 5, 30, 17, 9, 22, 3, 14))


PENALTIES = {"repetition_penalty": 1.3, "repetition_context": 7, "presence_penalty": 0.5}


def requests(seed: int, **more: Any) -> list[Request]:
    """The subject with this seed, and seven neighbours of their own, some with penalties."""
    return [
        Request(
            prompt,
            max_tokens=TOKENS - 2 * abs(i - SUBJECT),  # some end before the subject does
            temperature=1,
            top_p=1 if i == SUBJECT else 0.9,
            seed=seed if i == SUBJECT else 100 + i,
            **(more if i == SUBJECT else PENALTIES if i % 2 else {}),
        )
        for i, prompt in enumerate(PROMPTS)
    ]


async def text_of(asked: list[Request], index: int, trace: Trace | None = None) -> str:
    """One row's text, from a new engine with nothing cached; the rows are submitted all at once."""
    text = ""
    settings = Settings(batch=8, prompt_cache_bytes=0)
    observe = trace.observe if trace else None
    with trio.fail_after(60):
        async with open_system(families.loader("llama"), settings, observe=observe) as engine:
            async with engine.open_rows(asked) as stream:
                async for event in stream:
                    assert isinstance(event, motet.Text | motet.Finished), event
                    if event.index == index and isinstance(event, motet.Text):
                        text += event.text
    return text


async def alone(seed: int, **more: Any) -> str:
    return await text_of([requests(seed, **more)[SUBJECT]], 0)


EVERYTHING = {"frequency_penalty": 0.4, "logit_bias": {80: 2.0}, "xtc_probability": 0.5, "logprobs": 2}


@pytest.mark.parametrize("more", [{}, PENALTIES | EVERYTHING], ids=["plain", "everything"])
async def test_a_seeded_request_gets_the_same_text_alone_and_among_neighbours_each_time(
    more: dict[str, Any],
) -> None:
    traces = [Trace(), Trace()]
    texts = [await alone(5, **more), await alone(5, **more)]
    texts += [await text_of(requests(5, **more), SUBJECT, trace) for trace in traces]
    assert texts[0] and texts == [texts[0]] * 4
    assert all(max(trace.widths()) >= 4 for trace in traces)  # they really met


async def test_another_seed_gives_another_text() -> None:
    assert len({await alone(seed) for seed in range(4)}) == 4


async def test_without_a_seed_two_runs_differ() -> None:
    request = Request(PROMPTS[SUBJECT], max_tokens=TOKENS, temperature=1)
    assert await text_of([request], 0) != await text_of([request], 0)
