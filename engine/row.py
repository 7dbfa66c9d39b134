"""A row: one request's state while it is prepared and while it runs, but for its caches (batch.py)."""

from typing import Literal

import attrs
import mlx.core as mx

from motet.engine.constraints.constraint import Constraint
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
    fault: str | None = None
    """Why the row fails instead: the token is not to be told."""

    @property
    def ends(self) -> bool:
        """Whether the row ends here, however."""
        return self.finish is not None or self.fault is not None


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
    constraint: Constraint | None = None
    """What its text must match."""
    token: mx.array | None = None
    """[1] uint32: the last token sampled before it joined a group, which the next step feeds."""

    def take(self, token: int, logprob: tuple[float, Likeliest] | None) -> Sampled:
        """Count a token that was read."""
        self.made += 1
        self.session.generated.append(token)
        if self.constraint is None:
            return Sampled(self, token, self._finish(token), logprob)
        self.constraint.accept(token)
        return Sampled(self, token, self._finish(token), logprob, self.constraint.fault)

    def take_forced(self, most: int) -> list[Sampled]:
        """Take the tokens that its grammar forces next, without a draw; at most so many."""
        if self.constraint is None:
            return []
        taken = []
        for token in self.constraint.forced()[: min(most, self.limit - self.made)]:
            self.session.drawn += 1
            taken.append(self.take(token, self.session.certain(token)))
        return taken

    def _finish(self, token: int) -> Finish | None:
        if token in self.stop_tokens or (self.constraint is not None and self.constraint.over):
            return "stop"
        return "length" if self.made >= self.limit else None
