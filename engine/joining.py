"""Rows on their way into a group of full-attention caches, a few layers at a time.

The result is what mlx-lm's ``BatchKVCache.extend`` gives: all rows right-aligned, left-padded to the longest.
It is not used here because it writes the whole batch three times over (pad, concatenate, and again when the
next token finds no room): for eight rows of 1,500 tokens on a CPU 3 s, against 0.3 s for writing each new
buffer once, with room. That is still more than running rows should wait at once, so the layers are written
in pieces, between which the group goes on by one step each.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

_STEP = KVCache.step  # caches grow by so many tokens at a time, each time writing themselves anew
_MOST_ROOM = 4 * _STEP


class Joining:
    """The joined caches in the making. The running ones are only read, and stay whole if this fails.

    Args:
        running: the group's caches, one a layer: KVCache of a lone row, or BatchKVCache.
        joiners: the joiners' caches, likewise.
        pieces: how many calls of ``advance`` it may take; the group steps once between two of them.
        ahead: tokens that the rows may still get: room for them is made now, within reason.
    """

    def __init__(self, running: list[Any], joiners: list[Any], pieces: int, ahead: int) -> None:
        self._running = running
        self._joiners = joiners
        self._a_piece = -(-len(running) // pieces)  # layers
        self._steps = -(-len(running) // self._a_piece) - 1
        self._began = _filled(running[0])
        self._read = _filled(joiners[0])
        # Where the rows will end when the steps in between are done.
        self._end = max(self._began + self._steps, self._read)
        self._left = self._end - self._steps - self._began
        self._room = min(-(-ahead // _STEP) * _STEP, _MOST_ROOM)
        self._buffers: list[tuple[mx.array, mx.array]] = []
        self._copied: list[int] = []

    def advance(self) -> bool:
        """Write some layers; True when all are written and ``caches`` may be asked for."""
        first = len(self._buffers)
        layers = slice(first, first + self._a_piece)
        for old, new in zip(self._running[layers], self._joiners[layers], strict=True):
            self._buffers.append((self._buffer(old, "keys", new), self._buffer(old, "values", new)))
            self._copied.append(_filled(old))
        mx.eval(self._buffers[first:])
        return len(self._buffers) == len(self._running)

    def _buffer(self, old: Any, name: str, new: Any) -> mx.array:
        """[rows and joiners, heads, end + room, width]: the rows as they are now, and the joiners."""
        now, joining = getattr(old, name), getattr(new, name)
        rows, heads, _, width = now.shape
        filled = _filled(old)
        shape = (rows + joining.shape[0], heads, self._end + self._room, width)
        buffer = mx.zeros(shape, now.dtype)
        buffer[:rows, :, self._left : self._left + filled] = now[:, :, :filled]
        buffer[rows:, :, self._end - self._read : self._end] = joining[:, :, : self._read]
        return buffer

    def fits(self) -> bool:
        """Whether the group has stepped as often as was planned; if not, begin anew."""
        return _filled(self._running[0]) == self._began + self._steps

    def caches(self) -> list[BatchKVCache]:
        """The joined caches, with what the running rows were given since their layers were copied."""
        layers = zip(self._running, self._joiners, self._buffers, self._copied, strict=True)
        return [self._cache(*layer) for layer in layers]

    def _cache(self, old: Any, new: Any, buffers: tuple[mx.array, mx.array], copied: int) -> BatchKVCache:
        rows, filled = old.keys.shape[0], _filled(old)
        for name, buffer in zip(("keys", "values"), buffers, strict=True):
            if filled > copied:
                added = getattr(old, name)[:, :, copied:filled]
                buffer[:rows, :, self._left + copied : self._left + filled] = added
        joined = BatchKVCache([0])
        joined.keys, joined.values = buffers
        joined.left_padding = mx.concatenate(
            [_padding(old) + self._left, _padding(new) + (self._end - self._read)]
        )
        joined.offset = mx.concatenate([_offsets(old), _offsets(new)])
        joined._idx = self._end
        return joined


def _filled(cache: Any) -> int:
    """Columns of a cache that hold tokens or padding."""
    return int(cache.size())


def _padding(cache: Any) -> mx.array:
    """[rows] columns of left padding."""
    return mx.array([0]) if isinstance(cache, KVCache) else cache.left_padding


def _offsets(cache: Any) -> mx.array:
    """[rows] tokens held."""
    return mx.array([cache.offset]) if isinstance(cache, KVCache) else cache.offset
