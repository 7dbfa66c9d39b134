"""What the store holds, and what goes first: GreedyDual-Size over prefixes.

P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997: an entry's worth is what it would
cost to get again, by byte; used, it stands at the present level plus its worth; the one that stands lowest is
evicted, and the level rises to where it stood. So of two that are worth the same the older goes first, and of
two of the same age the one that is cheaper to read again.

What it costs to get a prefix again is told in tokens: those that no other entry serves. Of eight rows that
begin with one system prompt each is thus worth its own tail, and goes before the prefix that they share; the
last one that holds it is worth all of it. (A token's time grows with its depth by much less than entries
differ in this.)
"""

import heapq
from collections import OrderedDict

import attrs

from motet.actors.prefixes import PrefixIndex
from motet.channels.device import Snapshot
from motet.channels.namespace import Namespace


@attrs.define
class Entry:
    """A stored prefix."""

    tokens: tuple[int, ...]
    snapshot: Snapshot
    level: float = 0.0
    """The level when it was last used."""


class Entries:
    """Stored prefixes by handle, found by their tokens within a namespace."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # least recently used first
        self._indices: dict[Namespace, PrefixIndex[int]] = {}
        self._level = 0.0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: int) -> bool:
        return handle in self._entries

    def __getitem__(self, handle: int) -> Entry:
        return self._entries[handle]

    def longest(self, namespace: Namespace, tokens: tuple[int, ...], edge: int = 1) -> tuple[int | None, int]:
        """The handle that serves the longest prefix, and its length, a multiple of ``edge``."""
        index = self._indices.get(namespace)
        return (None, 0) if index is None else index.longest(tokens, edge)

    def used(self, handle: int) -> None:
        """An entry served somebody."""
        self._entries[handle].level = self._level
        self._entries.move_to_end(handle)

    def add(self, tokens: tuple[int, ...], snapshot: Snapshot) -> list[int]:
        """Take a snapshot in; the handles of those that it serves for."""
        handle = snapshot.handle
        self._entries[handle] = Entry(tokens, snapshot, self._level)
        self.nbytes += snapshot.nbytes
        index = self._indices.setdefault(snapshot.namespace, PrefixIndex())
        index.add(tokens, handle, cuttable=snapshot.trimmable)
        return index.on_the_way_to(tokens) if snapshot.trimmable else []

    def remove(self, handle: int) -> None:
        """Let an entry go."""
        entry = self._entries.pop(handle)
        self.nbytes -= entry.snapshot.nbytes
        self._indices[entry.snapshot.namespace].remove(entry.tokens)

    def shrink(self, most: int, kept: set[int]) -> list[int]:
        """Let go of those that stand lowest, none of ``kept``, until no more than ``most`` bytes are held.

        Returns:
            Their handles.
        """
        if self.nbytes <= most:
            return []
        order = {handle: place for place, handle in enumerate(self._entries)}
        heap = [(self._standing(handle), order[handle], handle) for handle in order if handle not in kept]
        heapq.heapify(heap)
        gone = []
        while heap and self.nbytes > most:
            standing, place, handle = heapq.heappop(heap)
            # It may be worth more by now: what served a part of it has gone. Never less.
            if (now := self._standing(handle)) > standing:
                heapq.heappush(heap, (now, place, handle))
                continue
            self._level = max(self._level, standing)
            self.remove(handle)
            gone.append(handle)
        return gone

    def _standing(self, handle: int) -> float:
        entry = self._entries[handle]
        spared = self._indices[entry.snapshot.namespace].spared(entry.tokens)
        return entry.level + (len(entry.tokens) - spared) / max(entry.snapshot.nbytes, 1)
