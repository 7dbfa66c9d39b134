"""A row on its way into a group of full-attention caches, a few layers at a time.

The result is what mlx-lm's ``BatchKVCache.extend`` gives: all rows right-aligned, left-padded to the longest.
It is not used here because it writes the whole batch three times over (pad, concatenate, and again when the
next token finds no room): for eight rows of 1,500 tokens on a CPU 3 s, against 0.3 s for writing each new
buffer once, with room. That is still more than running rows should wait at once, so the layers are written
in pieces, between which the group goes on by one step each.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from motet.engine.row import Row

_STEP = KVCache.step  # caches grow by so many tokens at a time, each time writing themselves anew
_MOST_ROOM = 4 * _STEP


class Joining:
    """The joined caches in the making. The running ones are only read, and stay whole if this fails.

    Args:
        running: the group's caches, one a layer: KVCache of a lone row, or BatchKVCache.
        row: the joiner, with KVCaches of its own.
        pieces: how many calls of ``advance`` it may take; the group steps once between two of them.
        ahead: tokens that the rows may still get: room for them is made now, within reason.
    """

    def __init__(self, running: list[Any], row: Row, pieces: int, ahead: int) -> None:
        self._running = running
        self._row = row
        self._a_piece = -(-len(running) // pieces)  # layers
        self._steps = -(-len(running) // self._a_piece) - 1
        self._began = _filled(running[0])
        # Where the rows will end when the steps in between are done.
        self._end = max(self._began + self._steps, row.fed)
        self._left = self._end - self._steps - self._began
        self._room = min(-(-ahead // _STEP) * _STEP, _MOST_ROOM)
        self._buffers: list[tuple[mx.array, mx.array]] = []
        self._copied: list[int] = []

    def advance(self) -> bool:
        """Write some layers; True when all are written and ``caches`` may be asked for."""
        first = len(self._buffers)
        for old, solo in zip(
            self._running[first : first + self._a_piece],
            self._row.caches[first : first + self._a_piece],
            strict=True,
        ):
            self._buffers.append((self._buffer(old, "keys", solo), self._buffer(old, "values", solo)))
            self._copied.append(_filled(old))
        mx.eval(self._buffers[first:])
        return len(self._buffers) == len(self._running)

    def _buffer(self, old: Any, name: str, solo: KVCache) -> mx.array:
        """[rows + 1, heads, end + room, width]: the rows as they are now, and the joiner."""
        now, joiner = getattr(old, name), getattr(solo, name)
        rows, heads, _, width = now.shape
        filled, length = _filled(old), self._row.fed
        buffer = mx.zeros((rows + 1, heads, self._end + self._room, width), now.dtype)
        buffer[:rows, :, self._left : self._left + filled] = now[:, :, :filled]
        buffer[rows:, :, self._end - length : self._end] = joiner[:, :, :length]
        return buffer

    def fits(self) -> bool:
        """Whether the group has stepped as often as was planned; if not, begin anew."""
        return _filled(self._running[0]) == self._began + self._steps

    def caches(self) -> list[BatchKVCache]:
        """The joined caches, with what the running rows were given since their layers were copied."""
        return [
            self._cache(old, buffers, copied)
            for old, buffers, copied in zip(self._running, self._buffers, self._copied, strict=True)
        ]

    def _cache(self, old: Any, buffers: tuple[mx.array, mx.array], copied: int) -> BatchKVCache:
        rows, filled = old.keys.shape[0], _filled(old)
        for name, buffer in zip(("keys", "values"), buffers, strict=True):
            if filled > copied:
                new = getattr(old, name)[:, :, copied:filled]
                buffer[:rows, :, self._left + copied : self._left + filled] = new
        lone = isinstance(old, KVCache)
        padding = mx.array([0]) if lone else old.left_padding
        offset = mx.array([filled]) if lone else old.offset
        joined = BatchKVCache([0])
        joined.keys, joined.values = buffers
        joined.left_padding = mx.concatenate([padding + self._left, mx.array([self._end - self._row.fed])])
        joined.offset = mx.concatenate([offset, mx.array([self._row.fed])])
        joined._idx = self._end
        return joined


def _filled(cache: Any) -> int:
    """Columns of a cache that hold tokens or padding."""
    return int(cache.size())
