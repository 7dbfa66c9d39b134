"""Sliding windows: the last ``max_size`` tokens of a row are held, in a ring."""

import copy
from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache

from motet.engine.layouts.port import Cost


class Rotating:
    """RotatingKVCache and BatchRotatingKVCache, through any number of wraps.

    A block of several tokens leaves up to ``max_size`` and the block less one behind; a row joins a group
    only after its prompt's last token went through alone, which cuts the ring to its size again.
    """

    pads = True

    def merge(self, lone: Sequence[RotatingKVCache]) -> Any:
        """In temporal order, left-padded to the longest."""
        return BatchRotatingKVCache.merge(list(lone))

    def extend(self, rows: Any, joiners: Any) -> Any:
        """In temporal order if their rings stand at unlike places. mlx-lm's sorts its arguments in place."""
        extended = copy.copy(_rows_of(rows))
        extended.extend(copy.copy(_rows_of(joiners)))
        return extended

    def keep(self, rows: Any, places: list[int]) -> None:
        """The ring keeps its width."""
        rows.filter(places)

    def straighten(self, rows: Any) -> None:
        """A turned ring into temporal order.

        mlx-lm's make_mask for more than one token takes it for straight, and hides the oldest token of
        rows that have left padding. The ring turns when one token is fed, which a chunk may be.
        """
        if isinstance(rows, BatchRotatingKVCache) and not rows.empty():
            rows._temporal_order()

    def finalize(self, rows: Any) -> None:
        """mlx-lm's."""
        rows.finalize()

    def extract(self, rows: Any, place: int) -> Any:
        """The row's tokens in temporal order."""
        return RotatingKVCache(rows.max_size) if rows.empty() else rows.extract(place)

    def checkpoint(self, cache: Any) -> Any:
        """With array handles of its own: a ring is written over, and its padding counted down, in place."""
        kept = copy.copy(cache)
        if not cache.empty():
            kept.keys, kept.values = cache.keys[:], cache.values[:]
        if isinstance(cache, BatchRotatingKVCache):
            kept.left_padding = cache.left_padding[:]
        return kept

    def cost(self, lone: RotatingKVCache) -> Cost:
        """By token, up to the window; nothing for a cache that its layer does not fill."""
        if lone.empty():
            return Cost()
        return Cost(per_token=lone.nbytes // lone.keys.shape[2], window=lone.max_size)


def _rows_of(cache: Any) -> Any:
    return BatchRotatingKVCache.merge([cache]) if isinstance(cache, RotatingKVCache) else cache
