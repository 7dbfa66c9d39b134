"""A row: one request's state while it is prepared and while it runs, but for its caches (batch.py)."""

from typing import Literal

import attrs
import mlx.core as mx

from motet.engine.sampling import SamplingSession

Finish = Literal["stop", "length"]


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
    last: int = -1
    """The token drawn last before it joined a group."""
    token: mx.array | None = None
    """[1] uint32: the last token sampled before it joined a group, which the next step feeds."""

    def finish(self, token: int) -> Finish | None:
        """Whether ``token``, just counted in ``made``, ends the row."""
        if token in self.stop_tokens:
            return "stop"
        return "length" if self.made >= self.limit else None
