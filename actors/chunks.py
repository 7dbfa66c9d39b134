"""How long a prompt chunk may be: as many tokens as are read within a time.

Sizes come from a small fixed set, so that few shapes are ever compiled. The time a token takes grows
with the depth it is read at; the estimate is kept by depth and follows what is measured.
"""

import attrs

SIZES = (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_FEW = 16
_DEPTH_STEP = 1024
_FOLLOW = 0.3  # how far an estimate goes towards what was measured
_DOUBT = 0.1  # likewise, of chunks that are mostly a forward's own cost, or a shape's first use
_TRUST = 2.0  # by what factor one measurement may differ from the estimate and still be believed


@attrs.define
class ChunkSizer:
    """Estimates a chunk's time as a forward's own cost and so much a token, by depth.

    Two terms, for with one a few short chunks, which are mostly the forward's own cost, would make the
    next ones shorter and shorter. Where shapes are planned, what a chunk takes tells of the greater one.
    """

    forward_seconds: float
    """A forward of a single token, from the load-time self-test."""
    token_seconds: float
    """What each token adds, at no depth; from the self-test."""
    largest: int
    """The most tokens of a chunk."""
    shape_seconds: float = 0.0
    """What a chunk pays for its shape, at first as if each were new; from the self-test, then as measured."""
    _by_depth: dict[int, float] = attrs.Factory(dict)

    def observe(self, tokens: int, depth: int, seconds: float) -> None:
        """A chunk of ``tokens`` at ``depth`` took ``seconds``."""
        step = depth // _DEPTH_STEP
        before = self._estimate(step)
        if tokens * before < self.shape_seconds:
            shape = seconds - self.forward_seconds - tokens * before
            self.shape_seconds += _FOLLOW * (
                min(max(shape, 0), _TRUST * self.shape_seconds) - self.shape_seconds
            )
            return
        now = (seconds - self._own) / tokens
        now = min(max(now, before / _TRUST), before * _TRUST)
        follow = _FOLLOW if self._by_depth else 1  # what is measured here is better than a guess
        if tokens * before < self._own:
            follow = _DOUBT
        self._by_depth[step] = before + follow * (now - before)

    def seconds(self, tokens: int, depth: int) -> float:
        """How long a chunk of ``tokens`` at this depth should take."""
        return self._own + tokens * self._estimate(depth // _DEPTH_STEP)

    def forward_tokens(self, depth: int) -> float:
        """What a forward costs of its own, in tokens at this depth."""
        return self._own / self._estimate(depth // _DEPTH_STEP)

    def size(self, depth: int, seconds: float) -> int:
        """The largest size that should take no longer than ``seconds`` at this depth.

        Where a forward alone takes nearly that, still as many tokens as cost little beside it.
        """
        cheap = min(self.forward_tokens(depth), _FEW)
        allowed = min(max(self.tokens(depth, seconds), cheap), self.largest)
        fitting = [size for size in SIZES if size <= allowed]
        return fitting[-1] if fitting else min(SIZES[0], self.largest)

    def tokens(self, depth: int, seconds: float) -> int:
        """How many tokens should take no longer than ``seconds`` at this depth; at least one."""
        allowed = (seconds - self._own) / self._estimate(depth // _DEPTH_STEP)
        return max(1, min(int(allowed), self.largest))

    @property
    def _own(self) -> float:
        return self.forward_seconds + self.shape_seconds

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
