"""The real small model in the batch: mlx-lm's own tokens and logits, with MLX's own BLAS."""

import os

import pytest
import trio

import motet
from motet.actors.system import Settings, open_system
from motet.engine import default_model, model
from oracle import Replay, Trace

TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "Water boils at",
    "Two plus two makes",
    "A cat and a dog",
    "In the beginning",
    "Roses are red, violets are",
    "To be or not to be, that is the",
)
LIMITS = (12, 4, 9, 6, 11, 5, 7, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_eight_staggered_streams_of_the_real_model_equal_mlx_lms_batch() -> None:
    directory = os.fspath(default_model.directory())
    trace = Trace()
    ends: list[motet.Event] = []
    async with open_system(
        lambda: model.load(directory),
        Settings(prompt_cache_bytes=0),
        observe=trace.observe,
        log_command=trace.log,
    ) as engine:

        async def stream(index: int, nursery: trio.Nursery) -> None:
            async with engine.generate(TEXTS[index], max_tokens=LIMITS[index]) as events:
                told = []
                async for event in events:
                    if not told and index + 1 < len(TEXTS):
                        nursery.start_soon(stream, index + 1, nursery)
                    told.append(event)
            ends.append(told[-1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, 0, nursery)
    assert [type(end) for end in ends] == [motet.Finished] * len(TEXTS)
    outcome = Replay(model.load(directory)[0].module).run(trace)
    assert max(outcome.widths) >= 3
    assert outcome.vectors >= sum(LIMITS) - len(LIMITS) and outcome.different == 0, outcome
