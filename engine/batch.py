"""Rows whose caches go through the model together, in preparation or in the running group.

One row keeps the caches that the model makes for it. Several are held as their layouts (layouts/) hold rows,
left-padded to the longest where a layout has columns.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from motet.engine.constraints.constraint import constrained
from motet.engine.layouts.choice import layout_of, leaves, regrouped
from motet.engine.row import Row, Sampled
from motet.engine.sampling import RowSampler
from motet.engine.state import begin_evaluation, nbytes


class Batch:
    """Rows and their caches.

    Args:
        rows: the rows, in the order of the caches' first axis.
        caches: one mlx-lm cache a layer (fewer or more in some families).
        merged: whether the caches are batch caches: for several rows, and for one that is left of several.
    """

    def __init__(self, rows: list[Row], caches: list[Any], merged: bool = False) -> None:
        self.rows = rows
        self.caches = caches
        self.merged = merged

    @classmethod
    def of(cls, parts: "Sequence[Batch]") -> "Batch":
        """One batch of several lone rows; a single part as it is."""
        if len(parts) == 1:
            return parts[0]
        rows = [row for part in parts for row in part.rows]
        layers = zip(*(leaves(part.caches) for part in parts), strict=True)
        merged = [layout_of(layer[0]).merge(layer) for layer in layers]
        return cls(rows, regrouped(parts[0].caches, merged), merged=True)

    @property
    def numbers(self) -> list[int]:
        """The rows' numbers."""
        return [row.number for row in self.rows]

    def row(self, number: int) -> Row:
        """The row of this number."""
        return self.rows[self.numbers.index(number)]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for the caches."""
        return nbytes(self.caches)

    def checkpoint(self) -> "Batch":
        """The batch as it is now, to go back to if a forward fails."""
        kept = [layout_of(leaf).checkpoint(leaf) for leaf in leaves(self.caches)]
        return Batch(list(self.rows), regrouped(self.caches, kept), self.merged)

    def read(self, model: Module, tokens: Sequence[Sequence[int]]) -> None:
        """Feed prompt tokens. The head is not computed: nothing asks for the logits.

        Unlike numbers of them are padded on the right, as mlx-lm's PromptProcessingBatch does it; a lone row
        that was never merged must not be.
        """
        lengths = [len(its) for its in tokens]
        padding = [max(lengths) - length for length in lengths]
        padded = [[*its, *[0] * pad] for its, pad in zip(tokens, padding, strict=True)]
        if any(padding):
            for cache in self.caches:
                cache.prepare(lengths=lengths, right_padding=padding)
        if self.merged and len(padded[0]) > 1:
            for leaf in leaves(self.caches):
                layout_of(leaf).straighten(leaf)
        model(mx.array(padded), cache=self.caches)
        mx.eval([cache.state for cache in self.caches])
        if any(padding):
            for leaf in leaves(self.caches):
                layout_of(leaf).finalize(leaf)
            mx.eval([cache.state for cache in self.caches])
        for row, its in zip(self.rows, tokens, strict=True):
            row.fed += len(its)

    def begin(self, model: Module, last: Sequence[int]) -> tuple[list[Sampled], mx.array]:
        """Feed a token to each row and draw the next: at a prompt's end, the rows' first.

        Returns:
            What was drawn, in the rows' order, and the logits [B, V].
        """
        logits: mx.array = model(mx.array(list(last))[:, None], cache=self.caches)[:, -1, :]
        drawn = RowSampler([row.session for row in self.rows]).draw(
            constrained(logits, [row.constraint for row in self.rows])
        )
        tokens = [drawn.tokens[i : i + 1] for i in range(len(self.rows))]
        mx.eval(tokens, drawn.arrays)
        for row, token in zip(self.rows, tokens, strict=True):
            row.token = token
            row.fed += 1
        return drawn.read(self.rows), logits

    def extract(self, number: int) -> list[Any]:
        """One row's caches as caches of a lone row: handed over if it was never merged, else copied."""
        if not self.merged:
            return self.caches
        index = self.numbers.index(number)
        lone = [layout_of(leaf).extract(leaf, index) for leaf in leaves(self.caches)]
        caches = regrouped(self.caches, lone)
        begin_evaluation(caches)
        return caches

    def alone(self, number: int) -> "Batch":
        """One row as a batch of its own."""
        return Batch([self.row(number)], self.extract(number))

    def drop(self, numbers: Sequence[int]) -> list[int]:
        """Take rows out, with the left padding that the others then share; return the places kept."""
        keep = [i for i, row in enumerate(self.rows) if row.number not in numbers]
        if not keep:
            self.caches = []
        elif len(keep) < len(self.rows):
            for leaf in leaves(self.caches):
                layout_of(leaf).keep(leaf, keep)
        self.rows = [self.rows[i] for i in keep]
        return keep
