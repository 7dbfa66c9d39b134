"""Full attention: every token of a row is held (KVCache; MLA's latents too)."""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from motet.engine.layouts.port import Cost


class Full:
    """KVCache and BatchKVCache, whose operations are right as they are."""

    def merge(self, lone: Sequence[KVCache]) -> Any:
        """Left-padded to the longest."""
        return BatchKVCache.merge(list(lone))

    def extend(self, rows: Any, joiners: Any) -> Any:
        """All right-aligned. Used for layers that joining.py does not write itself, the empty ones."""
        extended = copy.copy(rows_of(rows))
        extended.extend(rows_of(joiners))
        return extended

    def keep(self, rows: Any, places: list[int]) -> None:
        """The left padding that the kept rows share goes too."""
        rows.filter(places)

    def extract(self, rows: Any, place: int) -> Any:
        """The row's tokens without its padding."""
        return KVCache() if rows.empty() else rows.extract(place)

    def checkpoint(self, cache: Any) -> Any:
        """A forward only adds behind what is held, so the same arrays serve."""
        return copy.copy(cache)

    def cost(self, lone: KVCache) -> Cost:
        """By token; nothing for a cache that its layer does not fill."""
        if lone.empty():
            return Cost()
        return Cost(per_token=lone.nbytes // lone.keys.shape[2])


def rows_of(cache: Any) -> Any:
    """A lone cache's rows' form; rows as they are."""
    return BatchKVCache.merge([cache]) if isinstance(cache, KVCache) else cache


def filled(cache: Any) -> int:
    """Columns that hold tokens or padding."""
    return int(cache.size())


def padding(cache: Any) -> mx.array:
    """[rows] columns of left padding."""
    return mx.array([0]) if isinstance(cache, KVCache) else cache.left_padding


def offsets(cache: Any) -> mx.array:
    """[rows] tokens held."""
    return mx.array([cache.offset]) if isinstance(cache, KVCache) else cache.offset
