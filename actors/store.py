"""The prompt-cache store: which prefixes the device holds a snapshot of.

Owns: the index of prefixes over snapshot handles, their bytes and ceiling, leases by row, what is still to
be written to disk.
Takes: Take and ReleaseLease from prefill, Put from prefill and decode, Trim from admission, Found, Loaded and
Persisted from the persister.
Sends: Lease to prefill; Trimmed to admission; Load, Fetch, Cancel and Persist to the persister; Forget, and
at the end Shutdown, to the device.
Waited for by: nobody (prefill goes on with other rows while a Lease is on its way; admission hears messages
while a Trim is, though it admits nobody who needs the room).
"""

from typing import assert_never

import attrs
import trio

from motet.actors.entries import Entries
from motet.channels import persister
from motet.channels.admission import Trimmed
from motet.channels.device import Forget, Shutdown, Snapshot, StoreCommand
from motet.channels.gauges import StoreGauges
from motet.channels.mailbox import Outlet, post
from motet.channels.prefill import Lease
from motet.channels.store import (
    Closing,
    Found,
    Loaded,
    Persisted,
    Put,
    ReleaseLease,
    Take,
    ToStore,
    Trim,
)

WRITERS = 2  # prefill and decode: each says Closing

ToPersister = persister.Load | persister.Fetch | persister.Cancel | persister.Persist | persister.Closing


async def store(
    inbox: trio.MemoryReceiveChannel[ToStore],
    to_prefill: Outlet[Lease],
    to_persister: Outlet[ToPersister],
    to_device: Outlet[StoreCommand],
    to_admission: Outlet[Trimmed],
    ceiling: int,
    gauges: StoreGauges,
) -> None:
    """Run until both writers have left and what is to be on disk is there.

    ``ceiling`` is in bytes, until a Trim says another; 0 is none.
    """
    state = Store(to_prefill, to_persister, to_device, to_admission, ceiling, gauges)
    with inbox:
        while not state.over:
            state.hear(await inbox.receive())
    post(to_persister, persister.Closing())
    post(to_device, Shutdown())  # nobody is left who could ask anything of it


@attrs.define
class Asked:
    """A row's Load that the persister has not ended."""

    take: Take | None
    """What the row waits for; None when it has left."""
    length: int
    """Tokens of it that memory held when it was asked."""
    reserved: int = 0
    """Bytes that are kept for it."""
    cancelled: bool = False
    """Its Cancel is on the way."""
    again: bool = False
    """It is to be asked once more."""


class Store:
    """The store's state. Every decision is synchronous."""

    def __init__(
        self,
        to_prefill: Outlet[Lease],
        to_persister: Outlet[ToPersister],
        to_device: Outlet[StoreCommand],
        to_admission: Outlet[Trimmed],
        ceiling: int,
        gauges: StoreGauges,
    ) -> None:
        self._writers = WRITERS
        self._to_prefill = to_prefill
        self._to_persister = to_persister
        self._to_device = to_device
        self._to_admission = to_admission
        self._ceiling = ceiling
        self._gauges = gauges
        self._entries = Entries()
        self._asked: dict[int, Asked] = {}  # by row
        self._leases: dict[int, int] = {}  # row -> handle
        self._unwritten: dict[int, None] = {}  # handles in order
        self._writing: int | None = None
        self._trimming = False  # a Trim is not answered yet

    @property
    def over(self) -> bool:
        """Nobody can put anything, and everything is written."""
        return self._writers == 0 and self._writing is None and not self._unwritten

    def hear(self, message: ToStore) -> None:
        """Take one message and act on it."""
        match message:
            case Take():
                self._take(message)
            case Found(row, nbytes):
                self._found(row, nbytes)
            case Loaded(row, snapshot, tokens):
                self._loaded(row, snapshot, tokens)
            case ReleaseLease(row):
                self._release(row)
            case Put(tokens, snapshot):
                self._put(tokens[: snapshot.length], snapshot)
            case Persisted(handle):
                assert handle == self._writing
                self._writing = None
            case Trim(allowed):
                self._ceiling, self._trimming = allowed, True
                self._trim()
            case Closing():
                self._writers -= 1
            case _:
                assert_never(message)
        self._write_next()
        self._gauges.entries = len(self._entries)
        self._gauges.bytes = self._entries.nbytes
        if self._trimming and self._bytes() <= self._ceiling:
            self._trimming = False
            post(self._to_admission, Trimmed())

    def _bytes(self) -> int:
        """What is held, and what is promised to what is being restored."""
        return self._entries.nbytes + sum(asked.reserved for asked in self._asked.values())

    # --- asked for a prefix ---

    def _take(self, take: Take) -> None:
        if take.row in self._asked:  # a former question of the row's, which it took back
            self._asked[take.row].take = take
            return
        _, length = self._longest(take)
        if length == _usable(take):
            self._answer(take)
            return
        self._asked[take.row] = Asked(take, length)
        tokens = take.prompt[: _usable(take)]
        post(self._to_persister, persister.Load(take.row, tokens, length, take.edge, take.namespace))

    def _longest(self, take: Take) -> tuple[int | None, int]:
        return self._entries.longest(take.namespace, take.prompt[: _usable(take)], take.edge)

    def _answer(self, take: Take) -> None:
        """Tell a row what memory holds."""
        handle, length = self._longest(take)
        if handle is None:
            self._gauges.misses += 1
        else:
            self._entries.used(handle)
            self._leases[take.row] = handle
            self._gauges.hits += 1
            self._gauges.hit_tokens += length
        post(self._to_prefill, Lease(take.row, handle, length))

    def _release(self, row: int) -> None:
        self._leases.pop(row, None)
        asked = self._asked.get(row)
        if asked is not None:
            asked.take = None
            self._cancel(row, asked)
        self._trim()

    def _cancel(self, row: int, asked: Asked) -> None:
        if not asked.cancelled:
            asked.cancelled = True
            post(self._to_persister, persister.Cancel(row))

    # --- what is on disk ---

    def _found(self, row: int, nbytes: int) -> None:
        asked = self._asked[row]
        if asked.cancelled:
            return
        if asked.take is not None and self._longest(asked.take)[1] > asked.length:
            # Another's came from disk, or was read, while the question was on its way: look anew.
            asked.again = True
            self._cancel(row, asked)
            return
        fixed = sum(self._entries[handle].snapshot.nbytes for handle in set(self._leases.values()))
        reserved = sum(asked.reserved for asked in self._asked.values())
        if fixed + reserved + nbytes > self._ceiling:
            self._cancel(row, asked)
            return
        asked.reserved = nbytes
        self._trim()
        post(self._to_persister, persister.Fetch(row))

    def _loaded(self, row: int, snapshot: Snapshot | None, tokens: tuple[int, ...]) -> None:
        asked = self._asked.pop(row)
        if snapshot is not None:
            self._put(tokens, snapshot, written=True)
        if asked.take is not None and asked.again:
            self._take(asked.take)
        elif asked.take is not None:
            self._answer(asked.take)

    def _write_next(self) -> None:
        if self._writing is None and self._unwritten:
            handle = next(iter(self._unwritten))
            del self._unwritten[handle]
            self._writing = handle
            entry = self._entries[handle]
            post(self._to_persister, persister.Persist(handle, entry.tokens, entry.snapshot.namespace))

    # --- what is kept ---

    def _put(self, tokens: tuple[int, ...], snapshot: Snapshot, *, written: bool = False) -> None:
        assert len(tokens) == snapshot.length
        handle = snapshot.handle
        known, length = self._entries.longest(snapshot.namespace, tokens)
        if known is not None and length == len(tokens):
            self._entries.used(known)  # what it holds serves the new one's callers too
            post(self._to_device, Forget((handle,)))
            return
        if snapshot.nbytes > self._ceiling:  # nothing is to go for what cannot stay
            post(self._to_device, Forget((handle,)))
            return
        covered = self._entries.add(tokens, snapshot)
        if not written:
            self._unwritten[handle] = None
        leased = set(self._leases.values())
        self._forget([other for other in covered if other not in leased])
        self._trim()

    def _forget(self, handles: list[int]) -> None:
        for handle in handles:
            self._entries.remove(handle)
        self._tell_forgotten(handles)

    def _tell_forgotten(self, handles: list[int]) -> None:
        for handle in handles:
            self._unwritten.pop(handle, None)
        if handles:
            post(self._to_device, Forget(tuple(handles)))

    def _trim(self) -> None:
        reserved = self._bytes() - self._entries.nbytes
        gone = self._entries.shrink(self._ceiling - reserved, set(self._leases.values()))
        self._tell_forgotten(gone)
        self._give_up_restorations()

    def _give_up_restorations(self) -> None:
        """Room is needed that only what is being restored could give: it comes back with its Loaded."""
        over = self._bytes() - self._ceiling
        for row, asked in self._asked.items():
            if over > 0 and asked.reserved and not asked.cancelled:
                over -= asked.reserved
                self._cancel(row, asked)


def _usable(take: Take) -> int:
    """Tokens that a lease may cover: the last is always read, for its logits; and whole edges."""
    usable = len(take.prompt) - 1
    return usable - usable % take.edge
