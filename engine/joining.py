"""Rows on their way into a group: full-attention caches a few layers at a time, the others at the end.

For full attention the result is what mlx-lm's ``BatchKVCache.extend`` gives: all rows right-aligned,
left-padded to the longest. It is not used here because it writes the whole batch three times over (pad,
concatenate, and again when the next token finds no room): for eight rows of 1,500 tokens on a CPU 3 s,
against 0.3 s for writing each new buffer once, with room. That is still more than running rows should wait
at once, so the layers are written in pieces, between which the group goes on by one step each. Windows and
recurrent states are small: their layouts extend them when the last piece is done.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from motet.engine.layouts.choice import layout_of, leaves, regrouped
from motet.engine.layouts.full import filled, offsets, padding

GRANULE = KVCache.step
"""Tokens by which a full-attention cache grows, each time writing itself anew."""
MOST_ROOM = 4 * GRANULE
"""Tokens of room that a join makes at most."""


class Joining:
    """The joined caches in the making. The running ones are only read, and stay whole if this fails.

    Args:
        running: the group's caches: a lone row's, or rows'.
        joiners: the joiners' caches, likewise.
        ahead: tokens that the rows may still get: room for them is made now, within reason.
    """

    def __init__(self, running: list[Any], joiners: list[Any], ahead: int) -> None:
        self._structure = running
        self._running = leaves(running)
        self._joiners = leaves(joiners)
        self._written = _written(self._running, self._joiners)
        self._began = self._filled(self._running)
        self._read = self._filled(self._joiners)
        self._room = min(-(-ahead // GRANULE) * GRANULE, MOST_ROOM)
        self._buffers: list[tuple[mx.array, mx.array]] = []
        self._copied: list[int] = []
        self.plan(1)

    @property
    def nbytes(self) -> int:
        """Bytes that the pieces write, about."""
        columns = max(self._began, self._read) + self._room
        return sum(_row_bytes(self._joiners[i]) * self._rows(i) * columns for i in self._written)

    def plan(self, pieces: int) -> None:
        """Take so many calls of ``advance`` at most; the group steps once between two of them."""
        self._a_piece = max(-(-len(self._written) // pieces), 1)  # layers
        self._steps = max(-(-len(self._written) // self._a_piece) - 1, 0)
        # Where the rows will end when the steps in between are done.
        self._end = max(self._began + self._steps, self._read)
        self._left = self._end - self._steps - self._began

    def advance(self) -> bool:
        """Write some layers; True when all are written and ``caches`` may be asked for."""
        first = len(self._buffers)
        for i in self._written[first : first + self._a_piece]:
            old, new = self._running[i], self._joiners[i]
            self._buffers.append((self._buffer(old, "keys", new), self._buffer(old, "values", new)))
            self._copied.append(filled(old))
        mx.eval(self._buffers[first:])
        return len(self._buffers) == len(self._written)

    def _buffer(self, old: Any, name: str, new: Any) -> mx.array:
        """[rows and joiners, heads, end + room, width]: the rows as they are now, and the joiners."""
        now, joining = getattr(old, name), getattr(new, name)
        rows, heads, _, width = now.shape
        here = filled(old)
        shape = (rows + joining.shape[0], heads, self._end + self._room, width)
        buffer = mx.zeros(shape, now.dtype)
        buffer[:rows, :, self._left : self._left + here] = now[:, :, :here]
        buffer[rows:, :, self._end - self._read : self._end] = joining[:, :, : self._read]
        return buffer

    def fits(self) -> bool:
        """Whether the group has stepped as often as was planned; if not, begin anew."""
        return self._filled(self._running) == self._began + self._steps

    def caches(self) -> list[Any]:
        """The joined caches, with what the running rows were given since their layers were copied."""
        joined: dict[int, Any] = {}
        for i, buffers, copied in zip(self._written, self._buffers, self._copied, strict=True):
            joined[i] = self._cache(self._running[i], self._joiners[i], buffers, copied)
        for i, (old, new) in enumerate(zip(self._running, self._joiners, strict=True)):
            if i not in joined:
                joined[i] = layout_of(old).extend(old, new)
        together = regrouped(self._structure, [joined[i] for i in range(len(joined))])
        mx.eval([cache.state for cache in together])
        return together

    def _cache(self, old: Any, new: Any, buffers: tuple[mx.array, mx.array], copied: int) -> BatchKVCache:
        rows, here = old.keys.shape[0], filled(old)
        for name, buffer in zip(("keys", "values"), buffers, strict=True):
            if here > copied:
                added = getattr(old, name)[:, :, copied:here]
                buffer[:rows, :, self._left + copied : self._left + here] = added
        joined = BatchKVCache([0])
        joined.keys, joined.values = buffers
        joined.left_padding = mx.concatenate(
            [padding(old) + self._left, padding(new) + (self._end - self._read)]
        )
        joined.offset = mx.concatenate([offsets(old), offsets(new)])
        joined._idx = self._end
        return joined

    def _filled(self, caches: list[Any]) -> int:
        return filled(caches[self._written[0]]) if self._written else 0

    def _rows(self, i: int) -> int:
        return int(self._running[i].keys.shape[0] + self._joiners[i].keys.shape[0])


def _written(running: list[Any], joiners: list[Any]) -> list[int]:
    """The places of the full-attention caches that are written here: all but those that hold nothing."""
    full = [i for i, cache in enumerate(running) if isinstance(cache, KVCache | BatchKVCache)]
    full = [i for i in full if not running[i].empty() and not joiners[i].empty()]
    lengths = {(filled(running[i]), filled(joiners[i])) for i in full}
    return full if len(lengths) == 1 else []


def _row_bytes(cache: Any) -> int:
    """Bytes of one column of one row."""
    rows, _, columns, _ = cache.keys.shape
    return int(cache.nbytes // (rows * columns))
