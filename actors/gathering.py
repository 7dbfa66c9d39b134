"""The first prompt of an idle engine waits a moment for company.

Requests that are sent together arrive some milliseconds apart. Read alone, the first would already decode
while the others are read, each slowing the other; read together they share the forwards. The same holds for
rows that waited for a prefix and are woken when it is there: their reader waits for them.
"""

import math
from collections.abc import Iterable

_SHARE = 0.04  # of the time that the first prompt will take
_LEAST = 0.0015  # seconds, and so much again whenever another comes
_MOST = 0.025  # seconds in all


class Gathering:
    """When the wait is over. Times are a clock's seconds."""

    def __init__(self) -> None:
        self.until = math.inf
        """When to go on; infinity while nobody waits."""
        self._last = 0.0
        self._expected: set[int] = set()

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits for company."""
        return self.until != math.inf

    def begin(self, now: float, alone: float) -> None:
        """A prompt waits that would take ``alone`` seconds."""
        self._last = now + _MOST
        self.until = min(now + max(_SHARE * alone, _LEAST), self._last)

    def begin_for(self, rows: Iterable[int], now: float) -> None:
        """The next turn waits for these rows, whose leases are on their way."""
        self._expected.update(rows)
        if self._expected:
            self._last = now + _MOST
            self.until = self._last

    def came(self, row: int) -> None:
        """A row has come, or will not come: the last that was expected ends the wait."""
        if row in self._expected:
            self._expected.discard(row)
            if not self._expected:
                self.over()

    def another(self, now: float) -> None:
        """Another has come: there may be more."""
        if self.waiting:
            self.until = min(max(self.until, now + _LEAST), self._last)

    def over(self) -> None:
        """Nobody waits."""
        self.until = math.inf
        self._expected.clear()
