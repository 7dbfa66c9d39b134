"""Memory stays flat: a thousand requests leave what fifty leave, whatever the layout."""

import gc

import mlx.core as mx
import pytest
import trio

import families
import motet
from motet.actors.system import Settings, open_system

REQUESTS = 1000
SETTLED = 50
"""Requests after which everything that is allocated once is there."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "family", ["llama", "llama_swa", "qwen3_5", "deepseek_v32", "falcon_h1", "gemma3n", "llama4"]
)
async def test_a_thousand_requests_leave_what_fifty_leave(family: str) -> None:
    """Distinct prompts, eight at once, through each kind of layout, without the prompt cache."""
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=0)) as engine:
        used: list[int] = []
        places = trio.Semaphore(8)

        async def one(number: int) -> None:
            prompt = families.prompts((8 + number % 40,), seed=number)[0]
            async with places, engine.generate(prompt, max_tokens=4 + number % 9) as stream:
                async for event in stream:
                    assert not isinstance(event, motet.Failed), event

        async def run(numbers: range) -> None:
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    async with places:
                        nursery.start_soon(one, number)
            while engine.statistics()["batch"]["kv_bytes"]:
                await trio.sleep(0.001)
            gc.collect()
            used.append(mx.get_active_memory())

        await run(range(SETTLED))
        await run(range(SETTLED, REQUESTS))
        assert used[1] <= used[0] * 1.02, used
