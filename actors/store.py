"""The prompt-cache store: which prefixes the device holds a snapshot of.

Owns: the index of prefixes over snapshot handles, their bytes and ceiling, leases by row.
Takes: Take and ReleaseLease from prefill, Put from prefill and decode, Trim from admission, Loaded from the
persister.
Sends: Lease to prefill; Trimmed to admission; Load to the persister; Forget, and at the end Shutdown, to the
device.
Waited for by: nobody (prefill goes on with other rows while a Lease is on its way; admission hears messages
while a Trim is, though it admits nobody who needs the room).
"""

from collections import OrderedDict
from typing import assert_never

import attrs
import trio

from motet.actors.prefixes import PrefixIndex
from motet.channels import persister
from motet.channels.admission import Trimmed
from motet.channels.device import Forget, Shutdown, Snapshot, StoreCommand
from motet.channels.gauges import StoreGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.prefill import Lease
from motet.channels.store import Closing, Loaded, Put, ReleaseLease, Take, ToStore, Trim

WRITERS = 2  # prefill and decode: each says Closing


async def store(
    inbox: trio.MemoryReceiveChannel[ToStore],
    to_prefill: Outlet[Lease],
    to_persister: Outlet[persister.ToPersister],
    to_device: Outlet[StoreCommand],
    to_admission: Outlet[Trimmed],
    ceiling: int,
    gauges: StoreGauges,
) -> None:
    """Run until both writers have left. ``ceiling`` is in bytes, until a Trim says another; 0 is none."""
    state = Store(to_prefill, to_persister, to_device, to_admission, ceiling, gauges)
    with inbox:
        while state.writers:
            state.hear(await inbox.receive())
    post(to_persister, persister.Closing())
    post(to_device, Shutdown())  # nobody is left who could ask anything of it


@attrs.frozen
class Entry:
    """A stored prefix."""

    tokens: tuple[int, ...]
    snapshot: Snapshot


class Store:
    """The store's state. Every decision is synchronous."""

    def __init__(
        self,
        to_prefill: Outlet[Lease],
        to_persister: Outlet[persister.ToPersister],
        to_device: Outlet[StoreCommand],
        to_admission: Outlet[Trimmed],
        ceiling: int,
        gauges: StoreGauges,
    ) -> None:
        self.writers = WRITERS
        self._to_prefill = to_prefill
        self._to_persister = to_persister
        self._to_device = to_device
        self._to_admission = to_admission
        self._ceiling = ceiling
        self._gauges = gauges
        self._index: PrefixIndex[int] = PrefixIndex()
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # by handle, least recently used first
        self._asked: dict[int, Take] = {}  # the persister is looking
        self._leases: dict[int, int] = {}  # row -> handle
        self._trimming = False  # a Trim is not answered yet

    def hear(self, message: ToStore) -> None:
        """Take one message and act on it."""
        match message:
            case Take():
                self._take(message)
            case Loaded(row):
                self._loaded(row)
            case ReleaseLease(row):
                self._asked.pop(row, None)
                self._leases.pop(row, None)
                self._trim()
            case Put(tokens, snapshot):
                self._put(Entry(tokens[: snapshot.length], snapshot))
            case Trim(allowed):
                self._ceiling, self._trimming = allowed, True
                self._trim()
            case Closing():
                self.writers -= 1
            case _:
                assert_never(message)
        self._gauges.entries = len(self._entries)
        self._gauges.bytes = self._bytes()
        if self._trimming and self._bytes() <= self._ceiling:
            self._trimming = False
            post(self._to_admission, Trimmed())

    def _bytes(self) -> int:
        return sum(entry.snapshot.nbytes for entry in self._entries.values())

    def _take(self, take: Take) -> None:
        handle, length = self._longest(take)
        if handle is not None:
            self._lease(take.row, handle, length)
        else:
            self._asked[take.row] = take
            post(self._to_persister, persister.Load(take.row, take.prompt, beyond=0))

    def _loaded(self, row: int) -> None:
        take = self._asked.pop(row, None)
        if take is not None:  # else its row has gone
            self._gauges.misses += 1
            post(self._to_prefill, Lease(row, None, 0))

    def _longest(self, take: Take) -> tuple[int | None, int]:
        usable = len(take.prompt) - 1  # the last token is always read, for its logits
        return self._index.longest(take.prompt[:usable], take.edge)

    def _lease(self, row: int, handle: int, length: int) -> None:
        self._entries.move_to_end(handle)
        self._leases[row] = handle
        self._gauges.hits += 1
        self._gauges.hit_tokens += length
        post(self._to_prefill, Lease(row, handle, length))

    def _put(self, entry: Entry) -> None:
        assert len(entry.tokens) == entry.snapshot.length
        handle = entry.snapshot.handle
        known, length = self._index.longest(entry.tokens)
        if known is not None and length == len(entry.tokens):
            self._entries.move_to_end(known)  # what it holds serves the new one's callers too
            post(self._to_device, Forget((handle,)))
            return
        self._entries[handle] = entry
        self._index.add(entry.tokens, handle, cuttable=entry.snapshot.trimmable)
        if entry.snapshot.trimmable:
            self._remove(self._index.on_the_way_to(entry.tokens))
        self._trim()

    def _trim(self) -> None:
        total = self._bytes()
        leased = set(self._leases.values())
        doomed = []
        for handle, entry in self._entries.items():
            if total <= self._ceiling:
                break
            if handle not in leased:
                doomed.append(handle)
                total -= entry.snapshot.nbytes
        self._remove(doomed)

    def _remove(self, handles: list[int]) -> None:
        leased = set(self._leases.values())
        gone = tuple(handle for handle in handles if handle not in leased)
        for handle in gone:
            self._index.remove(self._entries.pop(handle).tokens)
        if gone:
            post(self._to_device, Forget(gone))
