"""A row: one request's state while it is prepared and while it runs, but for its caches (batch.py)."""

from typing import Literal

import attrs
import mlx.core as mx

from motet.engine.logprobs import Likeliest
from motet.engine.session import SamplingSession

Finish = Literal["stop", "length"]


@attrs.frozen
class Sampled:
    """A token that a row has drawn, read."""

    row: "Row"
    token: int
    finish: Finish | None
    """Whether it ends the row."""
    logprob: tuple[float, Likeliest] | None = None
    """Its log-probability, and the likeliest tokens in its place, if the row asks."""


@attrs.define(eq=False)
class Row:
    """One request."""

    number: int
    fed: int
    """Tokens that its caches hold."""
    session: SamplingSession
    stop_tokens: frozenset[int]
    limit: int
    """Tokens to generate at most."""
    made: int = 0
    """Tokens generated and read."""
    token: mx.array | None = None
    """[1] uint32: the last token sampled before it joined a group, which the next step feeds."""

    def take(self, token: int, logprob: tuple[float, Likeliest] | None) -> Sampled:
        """Count a token that was read."""
        self.made += 1
        self.session.generated.append(token)
        return Sampled(self, token, self._finish(token), logprob)

    def _finish(self, token: int) -> Finish | None:
        if token in self.stop_tokens:
            return "stop"
        return "length" if self.made >= self.limit else None
