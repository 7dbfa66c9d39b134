"""How long a prompt chunk may be: as many tokens as are read within a time.

Sizes come from a small fixed set, so that few shapes are ever compiled. The time a token takes grows
with the depth it is read at; the estimate is kept by depth and follows what is measured.
"""

import attrs

SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_DEPTH_STEP = 1024
_FEWEST_TIMED = 32  # shorter chunks are mostly a forward's fixed cost


@attrs.define
class ChunkSizer:
    """Estimates seconds a token by depth."""

    token_seconds: float
    """The first estimate, from the load-time self-test."""
    largest: int
    """The most tokens of a chunk."""
    _by_depth: dict[int, float] = attrs.Factory(dict)

    def observe(self, tokens: int, depth: int, seconds: float) -> None:
        """A chunk of ``tokens`` at ``depth`` took ``seconds``."""
        if tokens < _FEWEST_TIMED:
            return
        step = depth // _DEPTH_STEP
        now = seconds / tokens
        before = self._by_depth.get(step)
        self._by_depth[step] = now if before is None else (now + before) / 2

    def size(self, depth: int, seconds: float) -> int:
        """The largest size that should take no longer than ``seconds`` at this depth."""
        allowed = seconds / max(self._estimate(depth // _DEPTH_STEP), 1e-9)
        fitting = [size for size in SIZES if size <= min(allowed, self.largest)]
        return fitting[-1] if fitting else min(SIZES[0], self.largest)

    def _estimate(self, step: int) -> float:
        for nearer in range(step, -1, -1):
            if nearer in self._by_depth:
                return self._by_depth[nearer]
        return self.token_seconds


def next_chunk(remaining: int, size: int) -> int:
    """Tokens of the next chunk of a prompt with ``remaining`` tokens left, its last one among them.

    The last token goes through the model alone, so a prompt's end is read as ``remaining - 1`` and 1.
    Never leaves a single token for a chunk of its own before that.
    """
    body = remaining - 1
    if body <= size:
        return remaining
    if body - size > 1:
        return size
    return remaining if size <= SIZES[0] else size - 1


def next_edge(position: int, remaining: int, step: int) -> int:
    """As next_chunk, with edges at multiples of ``step``: chunks that depend on nothing else."""
    size = step - position % step
    return remaining if remaining - 1 <= size else size
