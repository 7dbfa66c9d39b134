"""What rows will cost, in bytes, before they are admitted: plain numbers measured at load, and formulas.

Where an allocation fails the process may end, so prediction is all there is: every formula is an upper bound.
"""

from collections.abc import Sequence

import attrs

GRANULE = 256
"""Tokens by which mlx-lm's caches grow."""
SURPLUS = 32
"""Tokens that a chunk may hold beyond the largest size: two shares of the least size (actors/turns.py)."""
LOGITS_ARRAYS = 16
"""Arrays of [rows, vocabulary] in float32 that a step holds at most: two steps' logits, and what the filters
and the noise make of them."""
CHUNK_MARGIN = 1.25
"""A chunk's activations are extrapolated from short ones."""
HEADROOM = 8 << 20
"""Bytes beyond the projection: what does not grow with the rows (registers, masks, token ids), and what MLX
allocates ahead of what it frees."""


@attrs.frozen
class RowLength:
    """How long a row can become: its prompt's tokens, and ``limit`` generated ones."""

    prompt: int
    limit: int

    @property
    def total(self) -> int:
        """Tokens that it can hold."""
        return self.prompt + self.limit


@attrs.frozen
class Ring:
    """The windowed caches of one size: ``per_token`` bytes for each of at most ``window`` tokens."""

    window: int
    per_token: int


@attrs.frozen
class Activations:
    """What a prompt's chunk holds beside the caches: ``fixed``, so much a token, and so much a score.

    A score is one token of the chunk times one of those it attends to. Fused attention holds none.
    """

    fixed: float = 0
    per_token: float = 0
    per_score: float = 0


@attrs.frozen
class Projection:
    """A model's costs in bytes, and the formulas over them."""

    fixed: int
    """A row, whatever its length (recurrent states)."""
    per_token: int
    """A column of a row in all caches that hold every token."""
    rings: tuple[Ring, ...]
    most_room: int
    """Columns that a join makes in advance at most; 0 if rows are served one at a time."""
    chunk: int
    """The most tokens of a chunk."""
    activations: Activations
    vocabulary: int
    keeps: bool
    """Whether snapshots are taken of rows that go on."""

    def needed(self, rows: Sequence[RowLength]) -> int:
        """Bytes that these rows hold at most while they live together; 0 for none."""
        return self.group(rows) + self.transients(rows)

    def group(self, rows: Sequence[RowLength]) -> int:
        """Rows x the bytes of a row as long as the longest can become, for a batch is padded to that.

        Columns: the longest rounded up to the granule, and the room that a join makes for the tokens to come
        (rounded up likewise, up to ``most_room``), at least the granule by which a cache grows. A ring holds
        no more than its window.
        """
        if not rows:
            return 0
        columns = self._columns(rows)
        rings = sum(ring.per_token * min(columns, ring.window) for ring in self.rings)
        return len(rows) * (self.fixed + self.per_token * columns + rings)

    def transients(self, rows: Sequence[RowLength]) -> int:
        """What comes on top for a moment: ``rewriting``, ``reading``, ``keeping`` and ``logits``."""
        return self.rewriting(rows) + self.reading(rows) + self.keeping(rows) + self.logits(rows)

    def rewriting(self, rows: Sequence[RowLength]) -> int:
        """The group once more.

        A join writes all rows into new buffers while the old ones still run; growth concatenates (old and
        new); taking rows out copies those that stay, and a snapshot of those that go; a cohort's chunk keeps
        what was before it, in case it fails. One of these at a time, each over rows that live.
        """
        return self.group(rows)

    def reading(self, rows: Sequence[RowLength]) -> int:
        """A chunk of T tokens: fixed + T x per token + T x longest x per score, times the margin; and rings.

        T: the largest chunk, or all that the rows can hold, padded, if that is less. While a prompt is read
        its rings hold the last chunk too: (n + 1) rows of window + T (one is being written), where the group
        and its rewriting count 2 n windows already.
        """
        if not rows:
            return 0
        longest = max(row.total for row in rows)
        tokens = min(self.chunk + SURPLUS, len(rows) * longest)  # unlike parts are padded
        its = self.activations
        chunk = its.fixed + its.per_token * tokens + its.per_score * tokens * longest
        return int(CHUNK_MARGIN * chunk) + sum(self._swollen(ring, rows, tokens) for ring in self.rings)

    def keeping(self, rows: Sequence[RowLength]) -> int:
        """One snapshot of each row's prompt, a granule and the last chunk in its rings included; 0 without.

        It is taken behind a chunk, and the store makes room for it while the next is read, in which the
        chunk's rows may be held twice already. (The snapshot of a row that ends takes the row's own room.)
        """
        return sum(map(self._snapshot, rows)) if self.keeps else 0

    def logits(self, rows: Sequence[RowLength]) -> int:
        """Rows x vocabulary x 4 bytes x LOGITS_ARRAYS."""
        return len(rows) * self.vocabulary * 4 * LOGITS_ARRAYS

    def _snapshot(self, row: RowLength) -> int:
        columns = _rounded(row.prompt) + GRANULE
        last = self.chunk + SURPLUS
        rings = sum(ring.per_token * min(columns, ring.window + last) for ring in self.rings)
        return self.fixed + self.per_token * columns + rings

    def _columns(self, rows: Sequence[RowLength]) -> int:
        room = min(_rounded(max(row.limit for row in rows)), self.most_room)
        return _rounded(max(row.total for row in rows)) + max(room, GRANULE)

    def _swollen(self, ring: Ring, rows: Sequence[RowLength], tokens: int) -> int:
        columns = self._columns(rows)
        window = min(ring.window, columns)
        last = min(tokens, columns - window)
        return ring.per_token * max(0, (len(rows) + 1) * (window + last) - 2 * len(rows) * window)


def _rounded(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE
