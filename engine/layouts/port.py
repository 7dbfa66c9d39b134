"""The port: what a kind of cache must do to hold many rows."""

from collections.abc import Sequence
from typing import Any, Protocol

import attrs


@attrs.frozen
class Cost:
    """What one row's cache costs, in bytes; the columns of a batch are as many as its longest row's.

    ``fixed`` whatever the row's length, and ``per_token`` for each token, of which at most ``window`` are
    held (None: all).
    """

    fixed: int = 0
    per_token: int = 0
    window: int | None = None


class Layout(Protocol):
    """One kind of mlx-lm cache: *lone* as the model makes it for one row, *rows* as a batch holds it."""

    pads: bool
    """Whether rows may be fed unlike numbers of tokens, padded on the right."""

    def merge(self, lone: Sequence[Any]) -> Any:
        """The rows' form of lone caches, which are unchanged; rows are padded on the left."""

    def extend(self, rows: Any, joiners: Any) -> Any:
        """Both together, in the rows' form. The arguments may be lone or rows, and are unchanged."""

    def keep(self, rows: Any, places: list[int]) -> None:
        """Keep the rows at these places of the first axis, in place."""

    def straighten(self, rows: Any) -> None:
        """Before several tokens of each row are read: what mlx-lm's own forward does not do, in place."""

    def finalize(self, rows: Any) -> None:
        """Behind a forward whose tokens were padded on the right: that padding goes to the left, in place."""

    def extract(self, rows: Any, place: int) -> Any:
        """One row as a lone cache that does not keep the others' memory alive."""

    def checkpoint(self, cache: Any) -> Any:
        """The cache as it is now, to go back to when a forward fails halfway."""

    def cost(self, lone: Any) -> Cost:
        """What a row costs, from a lone cache that holds a few tokens."""
