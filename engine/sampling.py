"""Drawing the next tokens of many rows at once.

mlx-lm's samplers could not serve: they take their scalars as Python numbers, which are compile-time
constants there (each new temperature builds a kernel), and draw from the thread's global random
state, so a neighbour would change a row's tokens. The filters here compute what mlx-lm's
``apply_top_p``, ``apply_min_p`` and ``apply_top_k`` compute (tests hold them to that), with one value a
row, and are not compiled, so that no request ever waits for a compiler.

Order, as in mlx-lm: top_p, min_p and top_k on the unscaled log-probabilities, then temperature.
"""

from collections.abc import Sequence

import attrs
import mlx.core as mx

_MASK64 = (1 << 64) - 1


@attrs.define(eq=False)
class SamplingSession:
    """One row's sampling: its settings, and how many samples it has drawn.

    ``temperature`` 0 is greedy; ``top_p`` 1, ``top_k`` 0 and ``min_p`` 0 are off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    drawn: int = 0

    def next_key(self) -> tuple[int, int]:
        """The random key of the next sample, from the seed and the sample's index alone.

        The two words of SplitMix64 (Steele, Lea, Flood 2014) seeded with ``seed`` at ``drawn``.
        """
        z = (self.seed + (self.drawn + 1) * 0x9E3779B97F4A7C15) & _MASK64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        z ^= z >> 31
        return z >> 32, z & 0xFFFFFFFF


class RowSampler:
    """Draws for a fixed list of rows; built anew when the list changes."""

    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._sessions = sessions
        warm = [i for i, s in enumerate(sessions) if s.temperature > 0]
        self._warm = [sessions[i] for i in warm]
        if not warm:
            return
        self._all_warm = len(warm) == len(sessions)
        self._index = mx.array(warm)
        self._inverse_temperature = _column([1 / s.temperature for s in self._warm])
        self._filters = _Filters(self._warm) if any(map(_filters, self._warm)) else None

    def draw(self, logits: mx.array) -> mx.array:
        """The next token of each row.

        Args:
            logits: [B, V], in the model's dtype, one row a session.

        Returns:
            [B] uint32, not evaluated.
        """
        # As mlx-lm: the arg-max of log-probabilities, which can tie where logits do not.
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        tokens = None
        if not self._warm or not self._all_warm:
            tokens = mx.argmax(logprobs, axis=-1)
        if self._warm:
            drawn = self._draw_warm(logprobs if tokens is None else logprobs[self._index])
            if tokens is None:
                tokens = drawn
            else:
                tokens[self._index] = drawn
        for session in self._sessions:
            session.drawn += 1
        assert tokens is not None
        return tokens

    def _draw_warm(self, logprobs: mx.array) -> mx.array:
        logprobs = logprobs.astype(mx.float32)
        if self._filters is not None:
            logprobs = self._filters.apply(logprobs)
        keys = mx.array([s.next_key() for s in self._warm], dtype=mx.uint32)
        width = logprobs.shape[-1]
        noise = mx.vmap(lambda key: mx.random.gumbel((width,), key=key))(keys)
        # The Gumbel-max trick, which is what mx.random.categorical computes.
        return mx.argmax(logprobs * self._inverse_temperature + noise, axis=-1)


def _filters(session: SamplingSession) -> bool:
    return session.top_p < 1 or session.top_k > 0 or session.min_p > 0


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]


class _Filters:
    """top_p, min_p and top_k with one value a row; a row that asks for none passes untouched."""

    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._top_p = _column([s.top_p for s in sessions])
        self._with_top_p = mx.array([[s.top_p < 1] for s in sessions])
        self._top_k = mx.array([[s.top_k] for s in sessions])
        self._with_top_k = mx.array([[s.top_k > 0] for s in sessions])
        # log 0 is minus infinity: nothing is below it, so min_p 0 filters nothing.
        self._log_min_p = mx.log(_column([s.min_p for s in sessions]))
        self._sorts = any(s.top_p < 1 or s.top_k > 0 for s in sessions)

    def apply(self, logprobs: mx.array) -> mx.array:
        """[R, V] float32 log-probabilities with what the filters remove set to minus infinity."""
        best = mx.max(logprobs, axis=-1, keepdims=True)
        removed = logprobs < best + self._log_min_p
        if self._sorts:
            ascending = mx.sort(logprobs, axis=-1)
            removed = removed | (self._with_top_p & (logprobs < self._nucleus(ascending)))
            last = mx.maximum(logprobs.shape[-1] - self._top_k, 0)
            kth = mx.take_along_axis(ascending, last, axis=-1)
            removed = removed | (self._with_top_k & (logprobs < kth))
        return mx.where(removed, -mx.inf, logprobs)

    def _nucleus(self, ascending: mx.array) -> mx.array:
        """The least log-probability within top_p, a token being out if those above it reach it."""
        probabilities = mx.exp(ascending)
        above = mx.cumsum(probabilities, axis=-1, reverse=True, inclusive=False)
        total = above[..., :1] + probabilities[..., :1]
        dropped = (above >= self._top_p * total).sum(axis=-1, keepdims=True)
        return mx.take_along_axis(ascending, dropped, axis=-1)
