"""Full attention: every token of a row is held (KVCache; MLA's latents too)."""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from motet.engine.layouts.port import Cost


class Full:
    """KVCache and BatchKVCache."""

    pads = True

    def merge(self, lone: Sequence[KVCache]) -> Any:
        """Left-padded to the longest, as BatchKVCache.merge, with room for half a granule of tokens at least.

        mlx-lm's has none, so that the next token writes all of it a second time: for eight rows that begin
        with one prefix of 1,000 tokens that costs as much as reading their own prompts.
        """
        lengths = [cache.size() for cache in lone]
        longest = max(lengths)
        merged = BatchKVCache([longest - length for length in lengths])
        if longest == 0:
            return merged
        step = BatchKVCache.step
        capacity = ((longest + step // 2) // step + 1) * step
        merged.keys = _side_by_side([cache.keys for cache in lone], lengths, longest, capacity)
        merged.values = _side_by_side([cache.values for cache in lone], lengths, longest, capacity)
        merged.offset += longest
        merged._idx = longest
        return merged

    def extend(self, rows: Any, joiners: Any) -> Any:
        """All right-aligned. Used for layers that joining.py does not write itself, the empty ones."""
        extended = copy.copy(rows_of(rows))
        extended.extend(rows_of(joiners))
        return extended

    def keep(self, rows: Any, places: list[int]) -> None:
        """The left padding that the kept rows share goes too."""
        rows.filter(places)

    def straighten(self, rows: Any) -> None:
        """Nothing to do."""

    def finalize(self, rows: Any) -> None:
        """As BatchKVCache's, value for value, but for the way: see ``_rolled``."""
        padding = rows._right_padding
        if padding is None:
            return
        rows.keys, rows.values = _rolled(rows.keys, padding), _rolled(rows.values, padding)
        rows.offset = rows.offset - padding
        rows.left_padding += padding
        rows._right_padding = None

    def extract(self, rows: Any, place: int) -> Any:
        """The row's tokens without its padding."""
        return KVCache() if rows.empty() else rows.extract(place)

    def checkpoint(self, cache: Any) -> Any:
        """The same arrays serve, for a forward only adds behind what is held; padding is counted in place."""
        kept = copy.copy(cache)
        if isinstance(cache, BatchKVCache):
            kept.left_padding = cache.left_padding[:]
        return kept

    def cost(self, lone: KVCache) -> Cost:
        """By token; nothing for a cache that its layer does not fill."""
        if lone.empty():
            return Cost()
        return Cost(per_token=lone.nbytes // lone.keys.shape[2])


def _side_by_side(
    arrays: Sequence[mx.array | None], lengths: list[int], longest: int, capacity: int
) -> mx.array:
    """[rows, heads, capacity, width]: each row's first ``length`` columns, ending at ``longest``."""
    some = next(array for array in arrays if array is not None)
    _, heads, _, width = some.shape
    buffer = mx.zeros((len(arrays), heads, capacity, width), some.dtype)
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if array is not None:
            buffer[i : i + 1, :, longest - length : longest] = array[:, :, :length]
    return buffer


def _rolled(array: mx.array, shifts: mx.array) -> mx.array:
    """[rows, heads, columns, width]: each row's columns rolled to the right by its shift [rows].

    mlx-lm's dynamic_roll gathers number by number, which takes a CPU five times as long as this, column by
    column: for eight rows of 1,000 tokens as long as reading a prompt of 40.
    """
    rows, heads, columns, width = array.shape
    column = (mx.arange(columns) - shifts[:, None]) % columns
    places = mx.arange(rows * heads).reshape(rows, heads, 1) * columns + column[:, None]
    return array.reshape(-1, width)[places]


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
