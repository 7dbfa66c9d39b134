"""What keeps unlikely tokens, or by XTC the likeliest, out of a draw: one value a row.

mlx-lm's functions could not serve: they take their scalars as Python numbers, which are compile-time
constants there (each new value builds a kernel), and ``apply_xtc`` draws from the thread's global random
state. These give what ``apply_min_p``, ``apply_top_k``, ``apply_top_p`` and ``apply_xtc`` give.
"""

from collections.abc import Sequence

import mlx.core as mx

from motet.engine.session import SamplingSession


class Filters:
    """The filters of a fixed list of rows; a row that asks for none passes untouched.

    min_p, top_k and top_p are thresholds on the same log-probabilities, so among them there is no
    order. XTC is for what they leave.
    """

    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._sessions = sessions
        self._top_p = column([s.top_p for s in sessions])
        self._with_top_p = mx.array([[s.top_p < 1] for s in sessions])
        self._top_k = mx.array([[s.top_k] for s in sessions])
        self._with_top_k = mx.array([[s.top_k > 0] for s in sessions])
        # log 0 is minus infinity: nothing is below it, so min_p 0 filters nothing.
        self._log_min_p = mx.log(column([s.min_p for s in sessions]))
        self._sorts = any(s.top_p < 1 or s.top_k > 0 for s in sessions)
        self._xtc = _Xtc(sessions) if any(s.xtc_probability > 0 for s in sessions) else None

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
        kept = mx.where(removed, -mx.inf, logprobs)
        return kept if self._xtc is None else self._xtc.apply(kept)

    def _nucleus(self, ascending: mx.array) -> mx.array:
        """The least log-probability within top_p, a token being out if those above it reach it."""
        probabilities = mx.exp(ascending)
        above = mx.cumsum(probabilities, axis=-1, reverse=True, inclusive=False)
        total = above[..., :1] + probabilities[..., :1]
        dropped = (above >= self._top_p * total).sum(axis=-1, keepdims=True)
        dropped = mx.minimum(dropped, ascending.shape[-1] - 1)  # a top_p that is 0 in float32
        return mx.take_along_axis(ascending, dropped, axis=-1)


class _Xtc:
    """Exclude top choices: of the tokens above a threshold all but the least likely, by chance."""

    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._sessions = sessions
        self._threshold = column([s.xtc_threshold for s in sessions])
        most = max(len(s.xtc_special) for s in sessions)
        self._special = mx.array(padded([s.xtc_special for s in sessions], most), dtype=mx.uint32)
        self._with_special = mx.array([[bool(s.xtc_special)] for s in sessions])

    def apply(self, kept: mx.array) -> mx.array:
        chosen = [session.excludes_top_choices() for session in self._sessions]
        if not any(chosen):
            return kept
        probabilities = mx.softmax(kept, axis=-1)
        above = mx.where(probabilities > self._threshold, probabilities, mx.inf)
        excluded = (probabilities > above.min(axis=-1, keepdims=True)) & mx.array(chosen)[:, None]
        if self._special.shape[-1]:
            special = mx.take_along_axis(excluded, self._special, axis=-1) & ~self._with_special
            excluded = mx.put_along_axis(excluded, self._special, special, axis=-1)
        return mx.where(excluded, -mx.inf, kept)


def column(values: list[float]) -> mx.array:
    """[R, 1] float32: one value a row."""
    return mx.array(values, dtype=mx.float32)[:, None]


def padded(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Token ids of each row, filled up to ``width`` at the front with the row's own first, or with 0."""
    return [[*[row[0] if row else 0] * (width - len(row)), *row] for row in rows]
