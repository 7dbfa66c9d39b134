"""Recurrent state: arrays of a fixed size a row (SSM and convolution states, gated delta)."""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from motet.engine.layouts.port import Cost


class Recurrent:
    """ArraysCache, which holds one row or many in the same form.

    Rows are fed as many real tokens each, so no padding ever reaches the state: several families do not
    mask it there (nemotron_h, mamba, jamba, rwkv7, recurrent_gemma), rwkv7 so slightly that no self-test
    would tell.
    """

    pads = False

    def merge(self, lone: Sequence[ArraysCache]) -> Any:
        """Along the first axis. mlx-lm's raises StopIteration for a slot that is None in every row."""
        merged = ArraysCache(len(lone[0].cache))
        for slot in range(len(merged.cache)):
            merged[slot] = _stacked([cache[slot] for cache in lone])
        return merged

    def extend(self, rows: Any, joiners: Any) -> Any:
        """Along the first axis."""
        extended = copy.copy(rows)
        extended.extend(joiners)
        return extended

    def keep(self, rows: Any, places: list[int]) -> None:
        """By place."""
        rows.filter(places)

    def straighten(self, rows: Any) -> None:
        """Nothing to do."""

    def finalize(self, rows: Any) -> None:
        """mlx-lm's."""
        rows.finalize()

    def extract(self, rows: Any, place: int) -> Any:
        """mlx-lm's cannot read an empty slot, and gives a slice, which keeps the whole batch alive."""
        extracted = ArraysCache(len(rows.cache))
        for slot, state in enumerate(rows.cache):
            extracted[slot] = None if state is None else mx.contiguous(state[place : place + 1])
        return extracted

    def checkpoint(self, cache: Any) -> Any:
        """A forward puts new arrays into the slots."""
        kept = copy.copy(cache)
        kept.cache = list(cache.cache)
        return kept

    def cost(self, lone: ArraysCache) -> Cost:
        """The same at every length."""
        return Cost(fixed=lone.nbytes)


def _stacked(states: list[mx.array | None]) -> mx.array | None:
    """[B, ...]; zeros for a row without, as a layer begins with."""
    held = next((state for state in states if state is not None), None)
    if held is None:
        return None
    return mx.concatenate([mx.zeros_like(held) if state is None else state for state in states])
