"""The persister alone, on a real directory; the store and the device are scripted."""

import errno
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from archives import NAMESPACE, content, draft, scanned
from heard import Heard
from motet.actors import loading, writing
from motet.actors.archive import Writer
from motet.actors.catalogue import Catalogue
from motet.actors.disk import LocalDisk, LocalFile
from motet.actors.persister import FAULTS, Desk, Outlets, Persister, Threads, persister
from motet.actors.store import Store
from motet.actors.writing import Writing
from motet.channels.archive import Draft, Filed, Piece, Scanned, Write, Written
from motet.channels.device import Discard, Export, Exported, Forget, Restore, Restored, Snapshot
from motet.channels.gauges import PersisterGauges, StoreGauges
from motet.channels.mailbox import post
from motet.channels.manifest import Manifest, Plane
from motet.channels.namespace import UNNAMED, Namespace
from motet.channels.persister import Cancel, Closing, Fetch, Load, Persist, ToPersister
from motet.channels.prefill import Lease
from motet.channels.store import Found, Loaded, Persisted, ReleaseLease, Take, Trim

Tokens = tuple[int, ...]
LONG = tuple(range(1000))


@attrs.define(eq=False)
class Cabinet:
    """A persister and its scripted peers."""

    say: trio.MemorySendChannel[ToPersister]
    told: trio.MemoryReceiveChannel[Any]
    gauges: PersisterGauges
    snapshots: dict[int, Draft] = attrs.Factory(dict)
    commands: list[Any] = attrs.Factory(list)
    restoring: dict[int, bytes] = attrs.Factory(dict)
    restored: dict[int, bytes] = attrs.Factory(dict)
    gone: bool = False
    """The device has forgotten what it exports, from the second piece on."""
    hold: bool = False
    """The device answers no Restore for now."""

    def send_nowait(self, command: Any, /) -> None:
        """The device."""
        self.commands.append(command)
        match command:
            case Export(handle, start, most):
                of = None if self.gone and start else self.snapshots[handle]
                data = b"" if of is None else content(of)[start : start + most]
                manifest = None if of is None else of.manifest
                post(self.say, Exported(handle, start, manifest, data, 0.001, busy=False))
            case Restore():
                if not self.hold:
                    self.take_in(command)
            case Discard(number):
                self.restoring.pop(number, None)

    def take_in(self, command: Restore) -> None:
        data = self.restoring[command.number] = self.restoring.get(command.number, b"") + command.data
        if len(data) < 2 * 16 * 1000:  # the entry LONG
            post(self.say, Restored(command.number))
            return
        del self.restoring[command.number]
        handle = 100 + command.number
        self.restored[handle] = data
        post(self.say, Restored(command.number, Snapshot(handle, 1000, len(data), True, NAMESPACE)))

    async def hear(self) -> Any:
        with trio.fail_after(10):
            return await self.told.receive()

    async def persist(self, handle: int, of: Draft) -> bool:
        self.snapshots[handle] = of
        post(self.say, Persist(handle, of.tokens, of.namespace))
        told = await self.hear()
        assert isinstance(told, Persisted) and told.handle == handle
        return told.stored

    async def load(self, tokens: Tokens, row: int = 7, namespace: Namespace = NAMESPACE) -> Loaded:
        post(self.say, Load(row, tokens, 0, 1, namespace))
        told = await self.hear()
        if isinstance(told, Found):
            post(self.say, Fetch(row))
            told = await self.hear()
        assert isinstance(told, Loaded) and told.row == row
        return told

    def asked(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]


@asynccontextmanager
async def cabinet(directory: pathlib.Path | None, ceiling: int = 1 << 30) -> AsyncIterator[Cabinet]:
    say, inbox = trio.open_memory_channel[ToPersister](40)
    tell, told = trio.open_memory_channel[Any](40)
    peers = Cabinet(say, told, PersisterGauges())
    async with trio.open_nursery() as nursery:
        outlets = Outlets(tell, peers)
        nursery.start_soon(persister, inbox, say, outlets, directory, ceiling, peers.gauges)
        yield peers
        post(say, Closing())


def files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Entries, and what is in work."""
    return list(directory.glob("*-*"))


async def with_long(directory: pathlib.Path) -> None:
    """LONG is in the directory."""
    async with cabinet(directory) as peers:
        assert await peers.persist(1, draft(LONG))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them an entry."""
    monkeypatch.setattr(writing, "PIECE", 5000)
    monkeypatch.setattr("motet.actors.archive.Reader.__init__.__defaults__", (7000,))


async def test_what_was_written_is_restored_after_a_restart(tmp_path: pathlib.Path) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        loaded = await peers.load((*LONG[:600], 5, 5))
        assert loaded.tokens == LONG and loaded.snapshot is not None
        assert peers.restored[loaded.snapshot.handle] == content(draft(LONG))
        assert len(peers.asked(Restore)) > 3 and peers.gauges.restored == 1


@pytest.mark.parametrize("other", [Namespace("another"), Namespace("model", scheme="affine8")])
async def test_another_namespace_finds_nothing(tmp_path: pathlib.Path, other: Namespace) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        assert (await peers.load(LONG, namespace=other)).snapshot is None
        assert peers.gauges.restored == 0 and peers.gauges.files == 1
        assert await peers.persist(2, draft(LONG, namespace=other))  # several models share it
        assert (await peers.load(LONG)).snapshot is not None


async def test_only_what_adds_enough_is_written(tmp_path: pathlib.Path) -> None:
    async with cabinet(tmp_path) as peers:
        assert not await peers.persist(1, draft(LONG[:255]))
        assert await peers.persist(2, draft(LONG[:256]))
        assert not await peers.persist(3, draft(LONG[:400]))
        assert await peers.persist(4, draft(LONG))
        assert not await peers.persist(5, draft(LONG))
    assert [file.tokens for file in scanned(Writer(LocalDisk(tmp_path), 1 << 30))] == [LONG]


async def test_an_entry_that_is_forgotten_while_it_is_exported_leaves_no_file(tmp_path: pathlib.Path) -> None:
    async with cabinet(tmp_path) as peers:
        peers.gone = True
        assert not await peers.persist(1, draft(LONG))
        peers.gone = False
        assert await peers.persist(1, draft(LONG))
    assert len(files(tmp_path)) == 1


async def test_rows_that_need_one_file_have_it_read_once(tmp_path: pathlib.Path) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        for row in range(8):
            post(peers.say, Load(row, LONG, 0, 1, NAMESPACE))
        assert await peers.hear() == Found(0, 32000)
        post(peers.say, Fetch(0))
        told = [await peers.hear() for _ in range(8)]
        assert [one.row for one in told] == list(range(8))
        assert told[0].snapshot is not None and all(one.snapshot is None for one in told[1:])
        assert peers.gauges.restored == 1


@pytest.mark.parametrize("pieces", [None, 0, 1, 2], ids=["before Fetch", "opened", "one piece", "two"])
async def test_a_cancelled_load_is_answered_at_once_and_the_next_row_takes_over(
    tmp_path: pathlib.Path, pieces: int | None
) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        peers.hold = True
        post(peers.say, Load(1, LONG, 0, 1, NAMESPACE))
        post(peers.say, Load(2, LONG, 0, 1, NAMESPACE))
        assert await peers.hear() == Found(1, 32000)
        if pieces is not None:
            post(peers.say, Fetch(1))
            for count in range(pieces):
                while len(peers.asked(Restore)) <= count:
                    await trio.sleep(0.001)
                if count < pieces - 1:
                    peers.take_in(peers.asked(Restore)[count])
        peers.hold = False
        post(peers.say, Cancel(1))
        assert await peers.hear() == Loaded(1, None)
        assert await peers.hear() == Found(2, 32000)
        for stale in peers.asked(Restore)[max((pieces or 0) - 1, 0) :]:
            post(peers.say, Restored(stale.number))
        post(peers.say, Fetch(2))
        loaded = await peers.hear()
        assert loaded.row == 2 and peers.restored[loaded.snapshot.handle] == content(draft(LONG))
        assert peers.restoring == {}


async def test_a_snapshot_of_a_load_that_was_given_up_is_forgotten(tmp_path: pathlib.Path) -> None:
    async with cabinet(tmp_path) as peers:
        post(peers.say, Restored(5, Snapshot(77, 3, 10, True)))
        assert not await peers.persist(1, draft((1, 2)))
        assert peers.asked(Forget) == [Forget((77,))]


async def test_a_damaged_file_is_a_miss_and_is_removed(tmp_path: pathlib.Path) -> None:
    await with_long(tmp_path)
    (file,) = files(tmp_path)
    async with cabinet(tmp_path) as peers:
        while peers.gauges.files == 0:
            await trio.sleep(0.001)
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        assert (await peers.load(LONG)).snapshot is None
        assert peers.restoring == {} and peers.gauges.bad_files == 1
        assert await peers.persist(1, draft(LONG))
        assert not file.exists()
        assert (await peers.load(LONG)).snapshot is not None


async def test_what_the_device_cannot_take_in_is_a_miss(tmp_path: pathlib.Path) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        peers.hold = True
        post(peers.say, Load(1, LONG, 0, 1, NAMESPACE))
        assert await peers.hear() == Found(1, 32000)
        post(peers.say, Fetch(1))
        while not peers.asked(Restore):
            await trio.sleep(0.001)
        post(peers.say, Restored(peers.asked(Restore)[0].number, error="not the model's kinds of caches"))
        assert await peers.hear() == Loaded(1, None)


@pytest.mark.parametrize("gone", [False, True])
def test_a_row_given_up_at_the_last_piece_is_answered_if_the_device_then_fails(gone: bool) -> None:
    """A shorter file would serve it too: it is not to be asked of a store that has cancelled already."""

    to_persister, to_store, to_prefill, device, reader, writer, trimmed = (Heard() for _ in range(7))
    threads = Threads(writer, reader)
    state = Persister(Outlets(to_store, device), threads, Desk(), PersisterGauges(), lambda: 0.0)
    shelf = Store(to_prefill, to_persister, Heard(), trimmed, 10_000, StoreGauges())

    def pump() -> None:
        while to_persister or to_store:
            for message in [to_persister.pop(0)] if to_persister else []:
                state.hear(message)
            for message in [to_store.pop(0)] if to_store else []:
                shelf.hear(message)

    filed = [
        Filed(name, UNNAMED, tuple(range(n)), Manifest(n, True, 0, "[]", (Plane("U8", (n,)),)))
        for name, n in (("long", 1000), ("short", 500))
    ]
    state.hear(Scanned(writer[-1].job, tuple(filed), 0))
    shelf.hear(Take(7, tuple(range(1001))))
    pump()
    state.hear(Piece(reader[-1].job, b"x" * 1000, True))
    shelf.hear(ReleaseLease(7) if gone else Trim(100))
    pump()
    state.hear(Restored(device[-1].number, error="no memory"))
    pump()
    assert to_prefill == ([] if gone else [Lease(7, None, 0)])
    assert len(trimmed) == (not gone)


async def test_a_full_disk_turns_writing_off_and_reading_goes_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_long(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFile, "write", full)
    async with cabinet(tmp_path) as peers:
        assert not await peers.persist(1, draft(tuple(range(5000, 6000))))
        assert "No space left" in peers.gauges.writes
        exports = len(peers.asked(Export))
        assert not await peers.persist(2, draft(tuple(range(7000, 8000))))
        assert len(peers.asked(Export)) == exports
        assert (await peers.load(LONG)).snapshot is not None
    assert len(files(tmp_path)) == 1


async def test_without_a_directory_everything_is_a_miss(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (None, tmp_path / "file"):  # none, and one that cannot be made
        async with cabinet(directory) as peers:
            assert (await peers.load(LONG)).snapshot is None
            assert not await peers.persist(1, draft(LONG)) and peers.commands == []


async def test_a_fault_costs_what_was_under_way_and_its_mail_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_long(tmp_path)
    async with cabinet(tmp_path) as peers:
        peers.hold = True
        post(peers.say, Load(1, LONG, 0, 1, NAMESPACE))
        assert await peers.hear() == Found(1, 32000)
        post(peers.say, Fetch(1))
        while not peers.asked(Restore):
            await trio.sleep(0.001)
        begun = peers.asked(Restore)[0].number
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                patch.undo()
                raise RuntimeError("injected")

            patch.setattr(loading.Loading, "load", fail)
            peers.hold = False
            post(peers.say, Load(2, LONG, 0, 1, NAMESPACE))
            post(peers.say, Load(3, LONG, 0, 1, NAMESPACE))  # its mail
            assert {(await peers.hear()).row for _ in range(2)} == {1, 2}
        assert await peers.hear() == Found(3, 32000)
        assert Discard(begun) in peers.commands
        post(peers.say, Restored(begun))  # it comes late
        post(peers.say, Fetch(3))
        assert (await peers.hear()).snapshot is not None
        assert peers.gauges.restarts == 1


async def test_fault_after_fault_it_keeps_to_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(Writing, "persist", fail)
    await trio.lowlevel.checkpoint()
    async with cabinet(tmp_path) as peers:
        for _ in range(FAULTS):
            assert not await peers.persist(1, draft(LONG))
        assert (await peers.load(LONG)).snapshot is None
        assert peers.gauges.writes == "off" and peers.gauges.restarts == FAULTS


def test_while_rows_run_writing_takes_a_small_share_of_the_time() -> None:
    asked: list[Any] = []

    class Outlet:
        def send_nowait(self, value: Any, /) -> None:
            asked.append(value)

    now = [0.0]
    catalogue, gauges = Catalogue(), PersisterGauges()
    state = Writing(Outlet(), Outlet(), lambda _: None, lambda: 1, catalogue, gauges, lambda: now[0])
    asked.clear()
    assert state.owns(1)  # the scan
    one = draft(LONG)
    state.persist(Persist(1, LONG, NAMESPACE))
    for busy, pause in ((True, 0.003 / writing.BUSY_SHARE), (False, 0.0)):
        export = asked.pop()
        assert isinstance(export, Export)
        data = content(one)[export.start : export.start + 5000]
        state.exported(Exported(1, export.start, one.manifest, data, 0.001, busy))
        assert isinstance(asked.pop(), Write) and state.owns(1)
        state.written(Written(1, seconds=0.002))
        now[0] += pause * 0.9
        state.resume()
        assert asked == [] or not busy
        now[0] += pause * 0.1
        state.resume()
