"""Rows in Motet's batch against mlx-lm's own batch: bit for bit, full logit vectors."""

import attrs
import pytest
import trio
import trio.lowlevel

import families
import motet
from motet.actors.system import Settings, open_system
from motet.channels.device import Chunk
from oracle import Outcome, Replay, Trace

FIRSTS_APART = "recurrent_gemma"
"""That no first token is read wrong beside others there is test_schedules.py's matter."""
LENGTHS = (5, 23, 11, 64, 3, 40, 17, 30)
LIMITS = (160, 40, 133, 62, 141, 45, 90, 70)


async def run_staggered(family: str, trace: Trace, **settings: object) -> dict[int, list[motet.Event]]:
    """Eight greedy streams of unlike lengths, each joining when the one before has a few tokens."""
    told: dict[int, list[motet.Event]] = {}
    cold = Settings(prompt_cache_bytes=0, **settings)  # type: ignore[arg-type]
    async with open_system(
        families.loader(family), cold, observe=trace.observe, log_command=trace.log
    ) as engine:
        prompts = families.prompts(LENGTHS)

        async def stream(index: int, nursery: trio.Nursery) -> None:
            told[index] = []
            async with engine.generate(prompts[index], max_tokens=LIMITS[index]) as events:
                started = False
                async for event in events:
                    told[index].append(event)
                    enough = isinstance(event, motet.Finished) or told[index]
                    if enough and not started and index + 1 < len(prompts):
                        started = True
                        nursery.start_soon(stream, index + 1, nursery)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, 0, nursery)
    return told


def replay(family: str, trace: Trace) -> Outcome:
    model, _ = families.build(family)
    return Replay(model, firsts_apart=family == FIRSTS_APART).run(trace)


@pytest.mark.parametrize("family", families.BATCHED)
async def test_staggered_rows_equal_mlx_lms_batch(family: str) -> None:
    """Joins in mid-stream and retirements included, no logit vector differs in any bit."""
    trace = Trace()
    told = await run_staggered(family, trace)
    assert all(isinstance(events[-1], motet.Finished) for events in told.values())
    outcome = replay(family, trace)
    assert max(outcome.widths) >= 4, outcome
    ends = [events[-1] for events in told.values()]
    assert outcome.vectors >= sum(e.usage.completion_tokens for e in ends if isinstance(e, motet.Finished))
    assert outcome.different == 0, outcome


async def test_a_lone_row_is_the_serial_graph() -> None:
    """Rows that never meet run on their own caches and equal generate_step bit for bit."""
    trace = Trace()
    async with open_system(
        families.loader("llama"),
        Settings(batch=1, prompt_cache_bytes=0),
        observe=trace.observe,
        log_command=trace.log,
    ) as engine:
        for prompt in families.prompts((9, 30)):
            async with engine.generate(prompt, max_tokens=12) as events:
                async for _ in events:
                    pass
    outcome = replay("llama", trace)
    assert outcome.widths == {1} and outcome.vectors == 24 and outcome.different == 0


async def test_a_wrong_batch_is_seen() -> None:
    """The oracle can fail: with one token of a chunk changed in the log, vectors differ."""
    trace = Trace()
    await run_staggered("llama", trace)
    for i, event in enumerate(trace.events):
        if isinstance(event, Chunk) and event.parts[0].row == 2:
            part = event.parts[0]
            wrong = attrs.evolve(part, tokens=(part.tokens[0] ^ 1, *part.tokens[1:]))
            trace.events[i] = Chunk((wrong, *event.parts[1:]))
            break
    assert replay("llama", trace).different > 0


@pytest.mark.parametrize("step", [96, 2048])  # many chunks, few
@pytest.mark.parametrize("family", families.BATCHED)
async def test_prompts_read_together_equal_mlx_lms_batch(family: str, step: int) -> None:
    """Prompts of unlike lengths at once: cohorts form, level, end together and decode as one."""
    trace = Trace()
    async with open_system(
        families.loader(family),
        Settings(batch=11, prompt_cache_bytes=0, prefill_step_size=step),
        observe=trace.observe,
        log_command=trace.log,
    ) as engine:
        prompts = families.prompts((170, 90, 140, 201, 140, 77, 160, 333, 2, 1, 3))
        requests = [motet.Request(prompt, max_tokens=20 + i) for i, prompt in enumerate(prompts)]
        async with engine.open_rows(requests) as stream:
            ends = [event async for event in stream if isinstance(event, motet.Finished)]
    assert len(ends) == 11
    chunks = [event for event in trace.events if isinstance(event, Chunk)]
    assert max(len(chunk.parts) for chunk in chunks) >= 4
    outcome = replay(family, trace)
    assert max(outcome.widths) >= 4 and outcome.different == 0, outcome


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_5", "nemotron_h"])
async def test_a_joiner_that_leaves_in_mid_prefill_changes_no_siblings_bits(family: str) -> None:
    """Others join while a cohort is read, one of its rows is cancelled; the rest equal mlx-lm's batch."""
    trace = Trace()
    async with open_system(
        families.loader(family),
        Settings(prompt_cache_bytes=0, prefill_step_size=96),
        observe=trace.observe,
        log_command=trace.log,
    ) as engine:
        prompts = families.prompts((700, 640, 690, 660, 650))
        ends: dict[int, motet.Event] = {}
        leaving = trio.CancelScope()

        async def row(index: int, scope: trio.CancelScope) -> None:
            with scope:
                async with engine.generate(prompts[index], max_tokens=20) as events:
                    async for ends[index] in events:
                        pass

        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(row, index, leaving if index == 1 else trio.CancelScope())
            for chunks, then in ((3, "join"), (8, "leave")):
                while engine.gauges.device.chunks < chunks:
                    await trio.lowlevel.checkpoint()
                if then == "leave":
                    leaving.cancel()
                else:
                    nursery.start_soon(row, 3, trio.CancelScope())
                    nursery.start_soon(row, 4, trio.CancelScope())
    assert leaving.cancelled_caught and 1 not in ends
    assert all(isinstance(ends[i], motet.Finished) for i in (0, 2, 3, 4))
    outcome = replay(family, trace)
    assert max(outcome.widths) >= 2 and outcome.different == 0, outcome
