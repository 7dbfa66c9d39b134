"""Log-probabilities of the drawn tokens and of the likeliest ones, for the rows that ask.

They are those of the distribution after logit_bias, constraint and penalties, before the filters and the
temperature: what mlx-lm reports. In float32, whatever the model's dtype.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx

from motet.engine.session import SamplingSession

Likeliest: TypeAlias = tuple[tuple[int, float], ...]
"""Tokens with their log-probabilities, likeliest first; those that cannot be drawn are left out."""


@attrs.frozen(eq=False)
class Captured:
    """Log-probabilities of one step, on the device until they are read."""

    rows: dict[int, int]
    """Which of the arrays' rows belongs to which of the step's."""
    most: list[int]
    drawn: mx.array
    """[L] float32: the drawn tokens'."""
    top: tuple[mx.array, mx.array] | None
    """[L, N]: token ids, and float32 their log-probabilities, in no order."""

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be evaluated with the step."""
        return [self.drawn, *(self.top or ())]

    def read(self) -> dict[int, tuple[float, Likeliest]]:
        """By the step's row, the drawn token's log-probability and the likeliest tokens."""
        drawn: Any = self.drawn.tolist()
        empty: list[list[Any]] = [[]] * len(drawn)
        tokens: Any = self.top[0].tolist() if self.top else empty
        values: Any = self.top[1].tolist() if self.top else empty
        return {
            row: (drawn[place], _likeliest(tokens[place], values[place], self.most[place]))
            for row, place in self.rows.items()
        }


def _likeliest(tokens: list[int], values: list[float], most: int) -> Likeliest:
    order = sorted(zip(tokens, values, strict=True), key=lambda one: (-one[1], one[0]))
    return tuple((token, value) for token, value in order[:most] if value > -math.inf)


class Capture:
    """Takes the log-probabilities of those rows of a fixed list that ask.

    Args:
        sessions: all rows.
        processed: the places of the rows whose logits are processed.
    """

    def __init__(self, sessions: Sequence[SamplingSession], processed: Sequence[int]) -> None:
        asking = [i for i, session in enumerate(sessions) if session.logprobs is not None]
        plain = [i for i in asking if i not in processed]
        apart = [i for i in asking if i in processed]
        self._plain = mx.array(plain) if plain else None
        self._apart = mx.array([list(processed).index(i) for i in apart]) if apart else None
        order = plain + apart
        self._order = mx.array(order)
        self._rows = {row: place for place, row in enumerate(order)}
        self._most = [sessions[i].logprobs or 0 for i in order]

    def take(self, logits: mx.array, processed: mx.array | None, tokens: mx.array) -> Captured:
        """What is to be told of one step, not evaluated.

        Args:
            logits: [B, V], in the model's dtype.
            processed: [P, V] float32, the log-probabilities of the processed rows.
            tokens: [B] the drawn tokens.
        """
        parts = []
        if self._plain is not None:
            plain = logits[self._plain].astype(mx.float32)
            parts.append(plain - mx.logsumexp(plain, axis=-1, keepdims=True))
        if self._apart is not None:
            assert processed is not None
            parts.append(processed[self._apart])
        logprobs = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        drawn = mx.take_along_axis(logprobs, tokens[self._order][:, None], axis=-1)[:, 0]
        most = min(max(self._most), logprobs.shape[-1])
        if not most:
            return Captured(self._rows, self._most, drawn, None)
        top = mx.argpartition(-logprobs, kth=most - 1, axis=-1)[:, :most]
        return Captured(self._rows, self._most, drawn, (top, mx.take_along_axis(logprobs, top, axis=-1)))
