"""A row: one request's model state and sampling state."""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module

from motet.engine.sampling import RowSampler, SamplingSession

Finish = Literal["stop", "length"]


@attrs.define(eq=False)
class Row:
    """State of one request; its caches are its own until it is merged into a group of several."""

    number: int
    caches: list[Any]
    """One mlx-lm cache a layer (fewer or more in some families), of one row."""
    fed: int
    """Tokens that the caches hold."""
    session: SamplingSession
    stop_tokens: frozenset[int]
    limit: int
    """Tokens to generate at most."""
    made: int = 0
    """Tokens generated and read."""
    token: mx.array | None = None
    """[1] uint32: the last token sampled, which the next step feeds."""

    def read(self, model: Module, tokens: Sequence[int]) -> None:
        """Feed prompt tokens. The head is never computed: nothing asks for these logits."""
        model(mx.array([tokens]), cache=self.caches)
        mx.eval([cache.state for cache in self.caches])
        self.fed += len(tokens)

    def begin(self, model: Module, last: int) -> tuple[int, mx.array]:
        """Feed the prompt's last token alone and draw the first token.

        Returns:
            The token, and its logits [1, V].
        """
        logits = model(mx.array([[last]]), cache=self.caches)[:, -1, :]
        self.token = RowSampler([self.session]).draw(logits)
        mx.eval(self.token)
        self.fed += 1
        token: Any = self.token.item()
        self.made = 1
        return int(token), logits

    def finish(self, token: int) -> Finish | None:
        """Whether ``token``, just counted in ``made``, ends the row."""
        if token in self.stop_tokens:
            return "stop"
        return "length" if self.made >= self.limit else None
