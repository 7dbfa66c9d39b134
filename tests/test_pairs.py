"""Any two ways to sample as two rows of one batch: each row is what it is alone."""

import itertools
from typing import Any

import pytest
import trio

import families
import motet
from motet.actors.system import Settings, open_system
from oracle import Trace

PROMPTS = families.prompts((12, 9))
TOKENS = 16
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seed": {"temperature": 1.0, "seed": 7},
    "filters": {"temperature": 1.1, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "seed": 8},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.7, "xtc_threshold": 0.01, "seed": 9},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.3},
    "logit_bias": {"logit_bias": {50: 4.0, 60: -100.0}},
    "logprobs": {"logprobs": 5, "temperature": 0.8, "seed": 10},
    "stop": {"stop": ("th", " q"), "temperature": 1.0, "seed": 11},
}
Row = tuple[str, str, list[bytes]]
"""Text, why it ended, and the bytes of the tokens with log-probabilities."""


async def told(engine: motet.Engine, kinds: list[tuple[int, str]]) -> list[Row]:
    requests = [motet.Request(PROMPTS[place], max_tokens=TOKENS, **KINDS[kind]) for place, kind in kinds]
    texts, tokens = [""] * len(kinds), [list[bytes]() for _ in kinds]
    ends = [""] * len(kinds)
    with trio.fail_after(30):
        async with engine.open_rows(requests) as stream:
            async for event in stream:
                if isinstance(event, motet.Text):
                    texts[event.index] += event.text
                    tokens[event.index] += [one.chosen.data for one in event.logprobs]
                elif isinstance(event, motet.Finished):
                    ends[event.index] = event.reason
    return list(zip(texts, ends, tokens, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "llama_swa", "qwen3_5"])
async def test_any_two_ways_to_sample_share_a_batch(family: str) -> None:
    """Full, rotating and recurrent layouts."""
    trace = Trace()
    loader = families.loader(family)
    async with open_system(loader, Settings(prompt_cache_bytes=0), observe=trace.observe) as engine:
        alone = {one: (await told(engine, [one]))[0] for one in itertools.product((0, 1), KINDS)}
        for first, second in itertools.combinations_with_replacement(KINDS, 2):
            pair = [(0, first), (1, second)]
            assert await told(engine, pair) == [alone[one] for one in pair], (first, second)
    assert len({row[0] for row in alone.values()}) > len(KINDS)  # the ways differ
    assert max(trace.widths()) == 2
