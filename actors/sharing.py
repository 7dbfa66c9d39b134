"""Prompts that share a prefix: one reads it, and those that wait for it go on from its snapshot.

N agents that begin with one system prompt arrive at the same moment: read each for itself it costs N times
as much. The reader's exit, however it ends, wakes all who wait; what it has read is in the store by then,
and whoever still lacks something reads it, or waits for another.
"""

from collections.abc import Callable, Iterable

import attrs

from motet.actors.joiner import Joiner
from motet.actors.prefixes import common_prefix

LEAST = 128
"""Tokens that waiting must spare, but for rows of one request: their prompt is read once, however short."""
_WAITS = 3  # times that a row waits at most: a store too small to keep a prefix must not stall it


@attrs.frozen
class Wait:
    """A row waits until ``reader`` has read ``length`` tokens."""

    reader: int
    length: int


class Sharing:
    """Who waits for whose prefix.

    Args:
        cuts: whether a snapshot serves shorter prefixes too.
    """

    def __init__(self, cuts: bool) -> None:
        self._cuts = cuts
        self._waits: dict[int, Wait] = {}

    def wait(self, joiner: Joiner, others: Iterable[Joiner]) -> bool:
        """Let a row wait for the one with which it shares most, if that spares enough."""
        if joiner.waits >= _WAITS:
            return False
        readers = [other for other in others if other.lease is not None and not other.leaving]
        shared = [(self._shared(joiner, reader), _siblings(joiner, reader), reader) for reader in readers]
        length, siblings, reader = max(shared, key=lambda one: one[:2], default=(0, False, joiner))
        if length - joiner.read < (1 if siblings else LEAST):
            return False
        joiner.waits += 1
        if reader.reach < length:
            reader.stops.add(length)
        elif not reader.keeps(length):  # the chunk on its way does not: the one behind it will
            reader.publish = True
            length = reader.reach + 1
        self._waits[joiner.work.row] = Wait(reader.work.row, length)
        return True

    def _shared(self, joiner: Joiner, reader: Joiner) -> int:
        """Tokens that the row would be spared from reading, counted from its start; 0 if it is too late."""
        last = min(len(joiner.tokens), len(reader.tokens)) - 1
        length = min(common_prefix(joiner.tokens, reader.tokens), last)
        if reader.keeps(length):
            return length
        ending = reader.reach >= len(reader.tokens)
        passed = reader.reach >= length and not self._cuts
        return 0 if ending or passed else length

    def reached(self, reader: int, read: int) -> list[int]:
        """The rows that need wait no longer, now that the reader has read so much."""
        return self._woken(lambda wait: wait.reader == reader and wait.length <= read)

    def left(self, row: int) -> list[int]:
        """A row is in preparation no longer: those that waited for it need wait no longer."""
        self._waits.pop(row, None)
        return self._woken(lambda wait: wait.reader == row)

    def _woken(self, done: Callable[[Wait], bool]) -> list[int]:
        woken = [row for row, wait in self._waits.items() if done(wait)]
        for row in woken:
            del self._waits[row]
        return woken


def _siblings(one: Joiner, other: Joiner) -> bool:
    return one.work.siblings == other.work.siblings != 0
