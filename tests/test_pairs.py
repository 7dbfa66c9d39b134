"""Any two ways to ask as two requests of one batch: each is what it is alone."""

import itertools
from typing import Any

import pytest
import trio

import families
import motet
from motet import grammar
from motet.actors.system import Settings, open_system
from oracle import Trace
from tool_samples import TOOLS

PROMPTS = families.prompts((12, 9))
CHATS = [[{"role": "user", "content": content}] for content in ("a fox", "the dog jumps")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seed": {"temperature": 1.0, "seed": 7},
    "filters": {"temperature": 1.1, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "seed": 8},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.7, "xtc_threshold": 0.01, "seed": 9},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.3},
    "logit_bias": {"logit_bias": {50: 4.0, 60: -100.0}},
    "logprobs": {"logprobs": 5, "temperature": 0.8, "seed": 10},
    "stop": {"stop": ("th", " q"), "temperature": 1.0, "seed": 11},
    "grammar": {"grammar": grammar.json_schema(SCHEMA), "temperature": 1.0, "seed": 12},
    "tools": {"tools": tuple(TOOLS), "must_call": True, "temperature": 1.0, "seed": 13, "max_tokens": 60},
    "n": {"n": 2, "temperature": 1.0, "seed": 14},
}
Row = tuple[str, str, str, list[bytes]]
"""Text, calls, why it ended, and the bytes of the tokens with log-probabilities."""


def request(place: int, kind: str) -> motet.Request:
    prompt: Any = CHATS[place] if kind == "tools" else PROMPTS[place]
    return motet.Request(prompt, **({"max_tokens": 16} | KINDS[kind]))


async def told(engine: motet.Engine, kinds: list[tuple[int, str]]) -> list[list[Row]]:
    """What came of each request's rows."""
    requests = [request(place, kind) for place, kind in kinds]
    count = sum(one.n for one in requests)
    texts, calls, ends = [""] * count, [""] * count, [""] * count
    tokens = [list[bytes]() for _ in range(count)]
    with trio.fail_after(60):
        async with engine.open_rows(requests) as stream:
            async for event in stream:
                match event:
                    case motet.Text(index, text):
                        texts[index] += text
                        tokens[index] += [one.chosen.data for one in event.logprobs]
                    case motet.ToolCall(index):
                        calls[index] += event.name + event.arguments
                    case motet.Finished(index, reason):
                        ends[index] = reason
                    case _:
                        raise AssertionError(event)
    rows = iter(zip(texts, calls, ends, tokens, strict=True))
    return [list(itertools.islice(rows, one.n)) for one in requests]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "llama_swa", "qwen3_5"])
async def test_any_two_ways_to_ask_share_a_batch(family: str) -> None:
    """Full, rotating and recurrent layouts."""
    trace = Trace()
    loader = families.loader(family)
    async with open_system(loader, Settings(prompt_cache_bytes=0), observe=trace.observe) as engine:
        alone = {one: (await told(engine, [one]))[0] for one in itertools.product((0, 1), KINDS)}
        equal = {}
        for first, second in itertools.combinations_with_replacement(KINDS, 2):
            pair = [(0, first), (1, second)]
            equal[first, second] = await told(engine, pair) == [alone[one] for one in pair]
    print(f"\n{family:12}" + "".join(f"{kind:>11}" for kind in KINDS))
    for second in KINDS:
        cells = [{True: "equal", False: "DIFFERENT"}.get(equal.get((first, second))) for first in KINDS]
        print(f"{second:12}" + "".join(f"{cell or '':>11}" for cell in cells))
    assert all(equal.values())
    assert len({str(rows) for rows in alone.values()}) > len(KINDS)  # the ways differ
    assert max(trace.widths()) == 4
