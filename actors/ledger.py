"""The ledger of bytes: what the live rows may need, and what the prompt cache may hold beside them.

Both belong to the admission queue; neither does anything but count and ask.
"""

from collections.abc import Collection

from motet.channels import store
from motet.channels.mailbox import Outlet, post
from motet.engine.projection import Projection, RowLength


class Ledger:
    """The rows that live, from Admit until Released, and what they will need at most."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._rows: dict[int, RowLength] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def enter(self, row: int, length: RowLength) -> None:
        """A row is admitted."""
        assert row not in self._rows
        self._rows[row] = length

    def leave(self, row: int) -> None:
        """The device has dropped the row."""
        del self._rows[row]

    def needed(self, *candidates: RowLength, without: Collection[int] = ()) -> int:
        """Bytes for the live rows but for those ``without`` which it is asked, and for the candidates."""
        rows = [length for row, length in self._rows.items() if row not in without]
        return self._projection.needed([*rows, *candidates])


class CacheShare:
    """The prompt cache's allowance: the store is asked to keep within it, one question at a time.

    Args:
        to_store: where the store listens.
        allowed: the bytes that the store may hold to begin with.
        ceiling: the most that it is ever allowed.
    """

    def __init__(self, to_store: Outlet[store.Trim], allowed: int, ceiling: int) -> None:
        self._to_store = to_store
        self._ceiling = ceiling
        self._allowed = allowed  # the store may hold so much until it has answered
        self._asked: int | None = None

    def fits(self, left: int) -> bool:
        """Whether the store keeps within ``left`` bytes; if not, it is asked to."""
        if self._allowed <= left:
            return True
        self._ask(left)
        return False

    def offer(self, left: int) -> None:
        """``left`` bytes are free: allow the store more if that is more."""
        if min(left, self._ceiling) > self._allowed:
            self._ask(min(left, self._ceiling))

    def answered(self) -> None:
        """The store keeps within what it was asked."""
        assert self._asked is not None
        self._allowed, self._asked = self._asked, None

    def _ask(self, allowed: int) -> None:
        if self._asked is None:
            self._asked = allowed
            self._allowed = max(self._allowed, allowed)
            post(self._to_store, store.Trim(allowed))
