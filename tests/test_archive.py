"""The directory of entries: the format, the ceiling, crashes, other processes. No model, no Trio."""

import errno
import os
import pathlib
import random
import shutil

import mlx.core as mx
import pytest
import structlog
from structlog.testing import LogCapture

from archives import NAMESPACE, NotingDisk, Op, after_crash, content, draft, du, read, scanned, write
from motet.actors.archive import Writer
from motet.actors.disk import LocalDisk, LocalFile
from motet.channels.archive import (
    Abort,
    Filed,
    ReadFailed,
    Remove,
    Scan,
    Scanned,
    Write,
    WriteFailed,
    Written,
)
from motet.channels.namespace import Namespace

PLENTY = 1 << 30


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """What the archive logs."""
    capture = LogCapture()
    logger = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    monkeypatch.setattr("motet.actors.archive.log", logger)
    return capture


def archive(directory: pathlib.Path, ceiling: int = PLENTY) -> Writer:
    return Writer(LocalDisk(directory), ceiling)


def test_what_is_written_is_read_by_whoever_comes_after(tmp_path: pathlib.Path) -> None:
    """In pieces of any size, planes without bytes and of several pieces among them."""
    drafts = [draft(tuple(range(n, 2 * n))) for n in (1, 3, 100, 1000)]
    names = [write(archive(tmp_path), one, piece) for one, piece in zip(drafts, (5, 7, 64, 999), strict=True)]
    files = {file.tokens: file for file in scanned(archive(tmp_path))}
    assert sorted(file.name for file in files.values()) == sorted(map(str, names))
    for one in drafts:
        file = files[one.tokens]
        assert (file.namespace, file.manifest) == (one.namespace, one.manifest)
        for piece in (3, 50, PLENTY):
            assert read(LocalDisk(tmp_path), file, piece) == content(one)


def test_it_is_a_safetensors_file(tmp_path: pathlib.Path) -> None:
    one = draft((5, 6, 7))
    name = write(archive(tmp_path), one)
    arrays, metadata = mx.load(str(tmp_path / str(name)), return_metadata=True)
    assert arrays["tokens"].tolist() == [5, 6, 7] and arrays["1"].dtype == mx.bfloat16
    assert bytes(memoryview(arrays["0"])) == content(one)[:48]
    assert (
        metadata["format"] == "motet-prompt-cache" and Namespace.decoded(metadata["namespace"]) == NAMESPACE
    )


# --- damage -----------------------------------------------------------------------------------


def is_a_miss(directory: pathlib.Path, known: Filed, right: bytes) -> bool:
    """To one who has the file in its index, and to one who comes after; else the bytes are right."""
    told = read(LocalDisk(directory), known)
    assert isinstance(told, ReadFailed) or told == right
    files = scanned(archive(directory))
    for file in files:
        assert file.tokens == known.tokens and file.namespace == known.namespace
        assert read(LocalDisk(directory), file) in (right,) or isinstance(told, ReadFailed)
    return isinstance(told, ReadFailed)


def test_any_byte_flipped_is_a_miss(tmp_path: pathlib.Path) -> None:
    one = draft((1, 2, 3), 8)
    name = str(write(archive(tmp_path), one))
    (known,) = scanned(archive(tmp_path))
    good = (tmp_path / name).read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        (tmp_path / name).write_bytes(bad)
        assert is_a_miss(tmp_path, known, content(one)), place


def test_a_file_cut_anywhere_or_grown_is_a_miss(tmp_path: pathlib.Path) -> None:
    one = draft((1, 2, 3), 8)
    name = str(write(archive(tmp_path), one))
    (known,) = scanned(archive(tmp_path))
    good = (tmp_path / name).read_bytes()
    for cut in range(len(good)):
        (tmp_path / name).write_bytes(good[:cut])
        assert is_a_miss(tmp_path, known, content(one)), cut
        assert not (tmp_path / name).exists()  # collected
    (tmp_path / name).write_bytes(good + b"\0")
    assert is_a_miss(tmp_path, known, content(one))


def test_what_is_not_an_entry_is_told_of_and_left_alone(tmp_path: pathlib.Path, said: LogCapture) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "sub").mkdir()
    assert scanned(archive(tmp_path)) == ()
    assert {entry["file"] for entry in said.entries} == {"notes.txt", "sub"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["directory", "link", "closed"])
def test_an_entrys_name_that_cannot_be_read_costs_nothing_else(
    tmp_path: pathlib.Path, kind: str, said: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = str(write(archive(tmp_path), draft((1, 2, 3))))
    odd = tmp_path / f"{'a' * 32}-{'b' * 16}.safetensors"
    match kind:
        case "directory":
            odd.mkdir()
        case "link":
            odd.symlink_to(tmp_path / good)
        case "closed":
            odd.write_bytes(b"mine")
            opened = LocalDisk.open

            def closed(disk: LocalDisk, name: str) -> int:
                if name == odd.name:
                    raise PermissionError(errno.EACCES, "no")
                return opened(disk, name)

            monkeypatch.setattr(LocalDisk, "open", closed)
    assert [filed.name for filed in scanned(archive(tmp_path))] == [good]
    assert [entry["file"] for entry in said.entries] == [odd.name]
    for ceiling in (PLENTY, 1):  # nor does making room
        assert isinstance(archive(tmp_path, ceiling).do(Scan(1)), Scanned)
    assert os.path.lexists(odd) == (kind != "closed")


def test_another_format_is_a_miss_and_is_collected(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, said: LogCapture
) -> None:
    name = str(write(archive(tmp_path), draft((1, 2, 3))))
    monkeypatch.setattr("motet.actors.entry_file.VERSION", "2")
    assert scanned(archive(tmp_path)) == ()
    assert [entry["reason"] for entry in said.entries] == ["of another format"]
    assert not (tmp_path / name).exists()


# --- the ceiling ------------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", [2_000_000, pytest.param(50_000_000, marks=pytest.mark.slow)])
def test_the_directory_never_takes_more_than_its_ceiling(tmp_path: pathlib.Path, ceiling: int) -> None:
    """Ten times as much is written, in pieces, under two namespaces; du is asked after each piece."""
    for namespace in (NAMESPACE, Namespace("model", scheme="affine8")):
        writer = archive(tmp_path, ceiling)
        scanned(writer)
        for number in range(100):
            one = draft((number,) * 16, ceiling // 320, namespace)
            data = content(one)
            for start in range(0, len(data), ceiling // 25):
                piece = Write(0, data[start : start + ceiling // 25], one if start == 0 else None)
                result = writer.do(piece)
                assert isinstance(result, Written) and not result.refused
                assert du(tmp_path) <= ceiling
            assert result.name is not None
        assert {file.namespace for file in scanned(archive(tmp_path, ceiling))} == {namespace}
    assert du(tmp_path) > ceiling / 2


def test_what_is_too_large_is_refused_and_removes_nothing(tmp_path: pathlib.Path) -> None:
    writer = archive(tmp_path, 100_000)
    assert write(writer, draft((1,) * 10)) is not None
    assert write(writer, draft((2,) * 10, 10_000)) is None
    assert len(scanned(writer)) == 1


def test_a_ceiling_that_was_lowered_holds_when_the_directory_is_opened(tmp_path: pathlib.Path) -> None:
    for number in range(10):
        write(archive(tmp_path), draft((number,) * 10, 1000))
        os.utime(next(iter(tmp_path.glob("*.safetensors"))), ns=(number, number)) if number == 0 else None
    assert len(scanned(archive(tmp_path, 100_000))) < 10
    assert du(tmp_path) <= 100_000


def test_the_least_recently_used_goes_first(tmp_path: pathlib.Path) -> None:
    writer = archive(tmp_path, 130_000)
    for number in (1, 2, 3):
        name = str(write(writer, draft((number,) * 10, 1500)))
        os.utime(tmp_path / name, ns=(number * 10**9,) * 2)
    first = next(file for file in scanned(writer) if file.tokens[0] == 1)
    assert isinstance(read(LocalDisk(tmp_path), first), bytes)
    assert write(writer, draft((4,) * 10, 1500)) is not None
    assert {file.tokens[0] for file in scanned(writer)} == {1, 3, 4}


def test_a_longer_entry_replaces_those_it_serves_for(tmp_path: pathlib.Path) -> None:
    writer = archive(tmp_path)
    name = str(write(writer, draft((1, 2, 3))))
    write(writer, draft((1, 2, 3, 4), replaces=(name,)))
    assert [file.tokens for file in scanned(writer)] == [(1, 2, 3, 4)]


def test_what_was_removed_is_gone_for_good_before_its_room_is_taken(tmp_path: pathlib.Path) -> None:
    """Else a power cut could bring it back beside what takes its room."""
    disk = NotingDisk(tmp_path)
    writer = Writer(disk, 130_000)
    names = [str(write(writer, draft((number,) * 10, 1500))) for number in (1, 2, 3)]
    write(writer, draft((4,) * 10, 1500))
    write(writer, draft((2,) * 11, 1000, replaces=(names[1],)))
    writer.do(Remove(0, names[2]))
    write(writer, draft((5,) * 10, 1500))
    removed = [place for place, op in enumerate(disk.ops) if op.kind == "remove"]
    assert len(removed) >= 3
    for place in removed:
        after = [op.kind for op in disk.ops[place:]]
        assert after.index("sync names") < after.index("create")


# --- two processes ----------------------------------------------------------------------------


def test_two_writers_of_one_directory_do_not_disturb_each_other(tmp_path: pathlib.Path) -> None:
    """Neither takes the other's file in work for a dead one's; the ceiling is over both."""
    ceiling = 150_000
    one, two = archive(tmp_path, ceiling), archive(tmp_path, ceiling)
    first, second = draft((1,) * 10, 2000), draft((2,) * 10, 2000)
    assert isinstance(one.do(Write(0, content(first)[:100], first)), Written)
    assert isinstance(two.do(Write(0, content(second)[:100], second)), Written)
    assert scanned(two) == () and len(list(tmp_path.glob("*.tmp"))) == 2
    third = draft((3,) * 10, 4000)
    refused = archive(tmp_path, ceiling).do(Write(0, content(third), third))
    assert isinstance(refused, Written) and refused.refused  # what is in work counts whole
    for writer, of in ((one, first), (two, second)):
        assert writer.do(Write(0, content(of)[100:])).name is not None  # type: ignore[union-attr]
    assert {file.tokens for file in scanned(one)} == {first.tokens, second.tokens}
    one.do(Write(0, content(third)[:100], draft((3,) * 10, 500)))
    one.do(Abort(0))
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_file_that_another_process_removed_is_a_miss(tmp_path: pathlib.Path) -> None:
    name = str(write(archive(tmp_path), draft((1, 2, 3))))
    (known,) = scanned(archive(tmp_path))
    (tmp_path / name).unlink()
    told = read(LocalDisk(tmp_path), known)
    assert isinstance(told, ReadFailed) and not told.damaged


# --- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = archive(tmp_path)
    assert write(writer, draft((1, 2, 3))) is not None
    one = draft((4,) * 10)
    assert isinstance(writer.do(Write(0, content(one)[:10], one)), Written)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "write", full)
        result = writer.do(Write(0, content(one)[10:]))
    assert isinstance(result, WriteFailed) and "No space left" in result.error
    assert [file.tokens for file in scanned(writer)] == [(1, 2, 3)]
    assert list(tmp_path.glob("*.tmp")) == []


# --- power cuts -------------------------------------------------------------------------------


def busy_life(disk: NotingDisk, ceiling: int, drafts: int, seed: int) -> dict[str, tuple[int, ...]]:
    """Entries written one after the other, some replaced, some given up; tokens of each by name.

    What was told as written stands among the operations.
    """
    draw = random.Random(seed)
    writer = Writer(disk, ceiling)
    scanned(writer)
    written: dict[str, tuple[int, ...]] = {}
    for number in range(drafts):
        replaces = tuple(draw.sample(sorted(written), 1)) if written and draw.random() < 0.2 else ()
        one = draft((number,) * draw.randint(1, 8), draw.choice((8, 600, 1500)), replaces=replaces)
        data = content(one)
        cut = draw.randint(1, len(data) - 1)
        writer.do(Write(0, data[:cut], one))
        if draw.random() < 0.1:
            writer.do(Abort(0))
            continue
        result = writer.do(Write(0, data[cut:]))
        assert isinstance(result, Written) and result.name is not None
        written[result.name] = one.tokens
        disk.ops.append(Op("told", result.name))
    return written


def rehearse(tmp_path: pathlib.Path, drafts: int, seed: int, variants: int) -> int:
    """Every first part of the operations, each cut short in several ways; how many were looked at."""
    ceiling = 60_000
    disk = NotingDisk(tmp_path / "noted")
    written = busy_life(disk, ceiling, drafts, seed)
    looked = 0
    for count in range(len(disk.ops) + 1):
        before = disk.ops[:count]
        told = {op.name for op in before if op.kind == "told"}
        removed = {op.name for op in before if op.kind == "remove"}
        for variant in range(variants):
            looked += 1
            crashed = tmp_path / "crashed"
            shutil.rmtree(crashed, ignore_errors=True)
            crashed.mkdir()
            for name, data in after_crash(before, random.Random(f"{seed} {count} {variant}")).items():
                (crashed / name).write_bytes(data)
            assert du(crashed) <= ceiling
            files = {file.name: file for file in scanned(Writer(LocalDisk(crashed), ceiling))}
            assert du(crashed) <= ceiling and not list(crashed.glob("*.tmp"))
            # What was told is there, unless it was removed for something else.
            assert told - removed <= set(files), (count, variant)
            for name, file in files.items():
                one = draft(file.tokens, file.manifest.planes[0].shape[1])
                assert file.tokens == written[name]
                assert read(LocalDisk(crashed), file) == content(one)
    return looked


def test_whatever_a_power_cut_leaves_is_whole_or_a_miss(tmp_path: pathlib.Path) -> None:
    assert rehearse(tmp_path, drafts=10, seed=1, variants=3) > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_power_cut_leaves_is_whole_or_a_miss_many_times(tmp_path: pathlib.Path, seed: int) -> None:
    assert rehearse(tmp_path, drafts=30, seed=seed, variants=4) > 500
