"""After a hit: the logits are those of a cold row with the same splits, bit for bit.

What splitting itself changes is mlx-lm's: the oracle of a hit is mlx-lm split, and cut, in the same places.
A hit inside a chunk is that of the chunk as it was read: in some families (experts sorted from a number of
tokens on) a shorter chunk gives other low bits.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

import families
from motet.actors.executor import Executor
from motet.channels.device import Chunk, Join, Opening, Part, Snapshot
from motet.channels.request import Sampling, Work
from motet.engine.model import Model

# deepseek_v41 keeps no snapshots.
SERVED = [f for f in families.FAMILIES if f not in families.UNSAFE and f != "deepseek_v41"]
STEPS = 3


@attrs.define
class Device:
    """An executor driven by hand, and the logits that it saw, a row."""

    model: Model
    seen: dict[int, list[np.ndarray]] = attrs.Factory(dict)
    executor: Executor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.executor = Executor(self.model, snapshots=True, observe=self._observe)

    def _observe(self, rows: tuple[int, ...], logits: mx.array) -> None:
        for i, row in enumerate(rows):
            self.seen.setdefault(row, []).append(np.array(logits[i].astype(mx.float32)))

    def read(
        self,
        number: int,
        prompt: Sequence[int],
        edges: Sequence[int],
        hit: tuple[int, int] | None = None,
        keep_at: int | None = None,
    ) -> Snapshot | None:
        """Read a prompt, a chunk to each edge; return the snapshot taken at ``keep_at``."""
        snapshot, read = hit or (None, 0)
        work = Work(number, tuple(prompt), 100, Sampling(), frozenset())
        opening: Opening | None = Opening(work, snapshot, read)
        kept = None
        for edge in [*edges, len(prompt) - 1]:
            last = edge == len(prompt) - 1
            tokens = tuple(prompt[read : edge + last])
            part = Part(number, tokens, last, opening, keep=edge == keep_at and not last)
            results = self.executor.execute(Chunk((part,)))
            assert results is not None
            (result,) = results
            (told,) = result.parts  # type: ignore[union-attr]
            assert told.error is None, told.error
            if told.kept is not None:
                kept = told.kept
            opening, read = None, edge
        return kept

    def decode(self, number: int) -> list[np.ndarray]:
        """Some steps of a lone row; its logits from the prompt's end on."""
        self.executor.execute(Join((number,)))
        for _ in range(STEPS):
            self.executor.step()
        self.executor.settle()
        return self.seen[number]


def mlx_lms(
    model: Any, owner: Sequence[int], owner_edges: Sequence[int], prompt: Sequence[int], edges: Sequence[int]
) -> np.ndarray:
    """mlx-lm's own logits of a prompt's last token, some of it read as another's and cut by mlx-lm."""
    caches = make_prompt_cache(model)
    for begin, end in pairwise([0, *owner_edges]):
        model(mx.array([owner[begin:end]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    surplus = max(owner_edges, default=0) - edges[0]
    if surplus > 0:
        assert trim_prompt_cache(caches, surplus) == surplus
    for begin, end in pairwise([*edges, len(prompt) - 1]):
        model(mx.array([prompt[begin:end]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    return np.array(model(mx.array([prompt[-1:]]), cache=caches)[0, -1].astype(mx.float32))


def cuts_of(draw: random.Random, low: int, high: int) -> list[int]:
    """Some edges between two places, in order."""
    inner = range(low + 1, high)
    return sorted(draw.sample(inner, min(len(inner), draw.randint(0, 3))))


@pytest.mark.parametrize("hits", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", SERVED)
def test_after_a_hit_the_logits_are_those_of_a_cold_row_with_the_same_splits(family: str, hits: int) -> None:
    model, _ = families.loader(family)()
    draw, worst = random.Random(family), 0.0
    for tree in range(hits):
        device = Device(model)
        owner = families.prompts((draw.randint(20, 90),), seed=tree)[0]
        shared = draw.randint(8, len(owner) - 3)
        owner_edges = cuts_of(draw, 0, shared)
        (tail,) = families.prompts((draw.randint(2, 40),), seed=100 + tree)
        prompt = [*owner[:shared], *tail]
        kept = device.read(1, owner, [*owner_edges, shared], keep_at=shared)
        assert kept is not None
        hit = shared
        if kept.trimmable and draw.random() < 0.5 and max(owner_edges, default=0) + 1 < shared:
            hit = draw.randint(max(owner_edges, default=0) + 1, shared)  # inside the last chunk
        tail_edges = cuts_of(draw, hit, len(prompt) - 1)
        device.read(2, prompt, tail_edges, hit=(kept.handle, hit))
        warm = device.decode(2)
        split = mlx_lms(model.module, owner, [*owner_edges, shared], prompt, [hit, *tail_edges])
        assert np.array_equal(warm[0], split)
        if hit == shared:
            cold = Device(model)
            cold.read(3, prompt, [*owner_edges, shared, *tail_edges])
            for ours, theirs in zip(warm, cold.decode(3), strict=True):
                assert np.array_equal(ours, theirs)
        worst = max(worst, float(np.abs(warm[0] - mlx_lms(model.module, [], [], prompt, [0])).max()))
    print(
        f"{family:20} {hits} hits, the logits of the same splits; unsplit they differ by {worst:.1e} at most"
    )
