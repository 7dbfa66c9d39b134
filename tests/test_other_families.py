"""The families that are not plain, however they are served: each row's tokens are mlx-lm's own."""

import itertools

import mlx.core as mx
import pytest
import trio
from mlx_lm.generate import generate_step

import families
import motet
from motet.actors.engine import Engine
from motet.actors.request import Request
from motet.actors.system import Settings, open_system
from oracle import Trace

FAMILIES = [f for f in families.FAMILIES if f not in families.UNSAFE]
PROMPTS = families.prompts((9, 40, 3, 25))  # a window of the tiny families has 16 tokens
TOKENS = 12


def alone(family: str) -> list[list[int]]:
    """What mlx-lm generates for each prompt, up to an end token."""
    model, _ = families.build(family)
    ends = families.tokenizer().eos_token_ids
    told = []
    for prompt in PROMPTS:
        steps = generate_step(mx.array(prompt), model, max_tokens=TOKENS)
        tokens = [int(token) for token, _ in itertools.islice(steps, TOKENS)]
        first_end = next((i for i, token in enumerate(tokens) if token in ends), TOKENS)
        told.append(tokens[: first_end + 1])
    return told


async def together(engine: Engine) -> tuple[list[str], list[motet.Finished]]:
    """All prompts at once; the text and the end of each."""
    texts = [""] * len(PROMPTS)
    ends: dict[int, motet.Finished] = {}
    requests = [Request(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
    async with engine.open_rows(requests) as stream:
        async for event in stream:
            if isinstance(event, motet.Text):
                texts[event.index] += event.text
            else:
                assert isinstance(event, motet.Finished), event
                ends[event.index] = event
    return texts, [ends[i] for i in range(len(PROMPTS))]


def drawn(trace: Trace, rows: range, ends: list[motet.Finished]) -> list[list[int]]:
    """The tokens of the rows with these numbers, from the logits that the device saw."""
    tokens: dict[int, list[int]] = {row: [] for row in rows}
    for event in trace.events:
        if isinstance(event, tuple):
            for row, logits in zip(*event, strict=True):
                if row in tokens:
                    tokens[row].append(int(logits.argmax()))
    counts = [end.usage.completion_tokens for end in ends]
    return [tokens[row][:count] for row, count in zip(rows, counts, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
async def test_four_rows_at_once_each_get_what_mlx_lm_gives_alone_and_again_from_the_cache(
    family: str,
) -> None:
    want = alone(family)
    trace = Trace()
    settings = Settings(batch=4, prompt_cache_bytes=1 << 24)
    with trio.fail_after(60):
        async with open_system(families.loader(family), settings, observe=trace.observe) as engine:
            texts, ends = await together(engine)
            again, ends_again = await together(engine)
    assert drawn(trace, range(1, 5), ends) == want
    assert all(end.usage.cached_tokens == 0 for end in ends)
    for end, tokens, prompt in zip(ends, want, PROMPTS, strict=True):
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(prompt), len(tokens))
        assert end.reason == ("length" if len(tokens) == TOKENS else "stop")
    assert again == texts and any(texts)
    assert drawn(trace, range(5, 9), ends_again) == want
    assert all(end.usage.cached_tokens < end.usage.prompt_tokens for end in ends_again)
