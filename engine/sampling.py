"""Drawing the next tokens of many rows at once.

The order, for each row (docs/sampling.md says why):

1. logit_bias, repetition, presence and frequency penalty on the logits (processing.py);
2. log-probabilities, which are what a row that asks is told (logprobs.py);
3. min_p, top_k and top_p on these, then XTC (filters.py);
4. temperature, and the draw by the row's own random key.

Greedy rows take the likeliest after 2. Each part is done once for all rows that ask for it, and not
at all if none does. Every value is an array's element and nothing is compiled, so that no request ever
waits for a compiler.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx

from motet.engine.filters import Filters, column
from motet.engine.logprobs import Capture, Captured
from motet.engine.processing import Processing
from motet.engine.row import Row, Sampled
from motet.engine.session import SamplingSession


@attrs.frozen(eq=False)
class Drawn:
    """One token a row, not evaluated."""

    tokens: mx.array
    """[B] uint32."""
    captured: Captured | None
    """The log-probabilities of the rows that ask for them."""

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be evaluated."""
        return [self.tokens] if self.captured is None else [self.tokens, *self.captured.arrays]

    def read(self, rows: Sequence[Row]) -> list[Sampled]:
        """Wait for them; count them in their rows, which are those that they were drawn for."""
        tokens: Any = self.tokens.tolist()
        told = {} if self.captured is None else self.captured.read()
        return [row.take(token, told.get(i)) for i, (row, token) in enumerate(zip(rows, tokens, strict=True))]


class RowSampler:
    """Draws for a fixed list of rows; built anew when the list changes."""

    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._sessions = sessions
        self._warm = _Some(sessions, [s.warm for s in sessions])
        if self._warm:
            self._inverse_temperature = column([1 / s.temperature for s in self._warm.sessions])
            filtered = any(s.filtered for s in self._warm.sessions)
            self._filters = Filters(self._warm.sessions) if filtered else None
        self._processed = _Some(sessions, [s.processed for s in sessions])
        self._processing: Processing | None = None
        asked = any(s.logprobs is not None for s in sessions)
        self._capture = Capture(sessions, self._processed.places) if asked else None

    def draw(self, logits: mx.array, fed: mx.array | None = None) -> Drawn:
        """The next token of each row.

        Args:
            logits: [B, V], in the model's dtype, one row a session.
            fed: [B] the rows' last drawn tokens, which gave these logits; None if the sessions have them
                already. At any draw but the first they are needed.
        """
        # As mlx-lm: the arg-max of log-probabilities, which can tie where logits do not.
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        processed = None
        if self._processed:
            processed = self._process(logits, fed)
            logprobs = self._processed.put(logprobs, processed)
        tokens = None
        if not self._warm.all:
            tokens = mx.argmax(logprobs, axis=-1)
        if self._warm:
            drawn = self._draw_warm(self._warm.of(logprobs))
            tokens = drawn if tokens is None else self._warm.put(tokens, drawn)
        assert tokens is not None
        captured = None if self._capture is None else self._capture.take(logits, processed, tokens)
        for session in self._sessions:
            session.drawn += 1
        return Drawn(tokens, captured)

    def _process(self, logits: mx.array, fed: mx.array | None) -> mx.array:
        """[P, V] float32: the log-probabilities of the processed rows."""
        if self._processing is None:
            self._processing = Processing(
                self._processed.sessions, pending=fed is not None, width=logits.shape[-1]
            )
        of_fed = None if fed is None else self._processed.of(fed)
        own = self._processing.apply(self._processed.of(logits), of_fed)
        return own - mx.logsumexp(own, axis=-1, keepdims=True)

    def _draw_warm(self, logprobs: mx.array) -> mx.array:
        logprobs = logprobs.astype(mx.float32)
        if self._filters is not None:
            logprobs = self._filters.apply(logprobs)
        keys = mx.array([s.next_key() for s in self._warm.sessions], dtype=mx.uint32)
        width = logprobs.shape[-1]
        noise = mx.vmap(lambda key: mx.random.gumbel((width,), key=key))(keys)
        # The Gumbel-max trick, which is what mx.random.categorical computes.
        return mx.argmax(logprobs * self._inverse_temperature + noise, axis=-1)


class _Some:
    """Those of a fixed list of rows that something is done for; nothing is copied if that is all."""

    def __init__(self, sessions: Sequence[SamplingSession], chosen: Sequence[bool]) -> None:
        self.places = [i for i, one in enumerate(chosen) if one]
        self.sessions = [sessions[i] for i in self.places]
        self.all = len(self.places) == len(sessions)
        self._index = mx.array(self.places)

    def __bool__(self) -> bool:
        return bool(self.places)

    def of(self, values: mx.array) -> mx.array:
        """[P, ...]: theirs of [B, ...]."""
        return values if self.all else values[self._index]

    def put(self, values: mx.array, own: mx.array) -> mx.array:
        """[B, ...] with theirs in place of what is there, in the wider dtype of their own."""
        if self.all:
            return own
        values = values.astype(own.dtype)
        values[self._index] = own
        return values
