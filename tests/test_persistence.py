"""Prefixes that survive: a whole engine, its directory, and what is done to both."""

import contextlib
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio

import families
import killed_engine
import motet
from archives import content, draft, du, read, scanned
from killed_writer import Passed, write_until_killed
from motet.actors import inspection
from motet.actors.archive import Writer
from motet.actors.disk import LocalDisk
from motet.actors.snapshots import Snapshots
from motet.actors.system import Settings, open_system
from motet.channels.archive import Draft, ReadFailed, Write, Written
from motet.channels.device import Export
from motet.channels.namespace import Namespace
from motet.engine import fingerprint as fingerprints
from test_planes import read_in

FULL, ROTATING, RECURRENT = "llama", "llama_swa", "qwen3_5"
LAYOUTS = [FULL, ROTATING, RECURRENT, "mamba", "falcon_h1", "deepseek_v32", "gemma3n"]
PREFIX = families.prompts((700,), seed=3)[0]
PROMPTS = [[*PREFIX, *tail] for tail in families.prompts(tuple(range(12, 20)), seed=4)]
TAILS = sum(len(prompt) - len(PREFIX) for prompt in PROMPTS)


def slow(value: str) -> Any:
    """A case of the long gate."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row ends by chance."""
    monkeypatch.setattr(families.tokenizer(), "eos_token_ids", set())


@attrs.frozen
class Told:
    texts: dict[int, str]
    computed: int
    disk: dict[str, Any]


async def told(
    family: str, prompts: list[list[int]], directory: pathlib.Path | None, **settings: Any
) -> Told:
    """All prompts at once on a fresh engine, which is drained then."""
    options = Settings(prompt_cache_dir=directory, **settings)
    async with open_system(families.loader(family), options) as engine:
        texts = dict.fromkeys(range(len(prompts)), "")
        async with engine.open_rows([motet.Request(prompt, max_tokens=6) for prompt in prompts]) as stream:
            async for event in stream:
                assert isinstance(event, motet.Text | motet.Finished), event
                if isinstance(event, motet.Text):
                    texts[event.index] += event.text
        await engine.drain(30)
        assert engine.death is None
        statistics = engine.statistics()
        return Told(texts, statistics["tokens"]["prompt"], statistics["prompt_cache"]["disk"])


# --- restarts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [FULL, RECURRENT, slow(ROTATING), slow("falcon_h1"), slow("deepseek_v32")])
async def test_after_a_restart_only_the_tails_are_read(family: str, tmp_path: pathlib.Path) -> None:
    cold = await told(family, PROMPTS, None, prompt_cache_bytes=0)
    first = await told(family, PROMPTS, tmp_path)
    assert first.texts == cold.texts and first.disk["written"] >= 1
    again = await told(family, PROMPTS, tmp_path)
    assert again.texts == cold.texts
    assert again.computed == TAILS and again.disk["restored"] == 1
    assert du(tmp_path) == again.disk["bytes"]


async def test_with_batch_1_a_file_serves_only_at_an_edge(tmp_path: pathlib.Path) -> None:
    options = {"batch": 1, "prefill_step_size": 256}
    cold = await told(FULL, PROMPTS[:2], None, prompt_cache_bytes=0, **options)
    await told(FULL, PROMPTS[:1], tmp_path, **options)
    again = await told(FULL, PROMPTS[:2], tmp_path, **options)
    assert again.texts == cold.texts and again.computed == sum(map(len, PROMPTS[:2])) - 2 * 512


@pytest.mark.parametrize("change", [slow("model"), "adapters", slow("scheme"), slow("companions")])
async def test_what_was_kept_in_another_namespace_is_a_miss(
    change: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told(FULL, PROMPTS, tmp_path)
    with monkeypatch.context() as patch:
        other = attrs.evolve(Namespace("x"), **{change: "y" if change in ("model", "scheme") else ("y",)})
        same = fingerprints.fingerprint(families.loader(FULL)()[0])
        base = Namespace("y" if change == "model" else same)
        patch.setattr(
            "motet.actors.system.Namespace",
            lambda _: attrs.evolve(base, **{change: getattr(other, change)}),
        )
        another = await told(FULL, PROMPTS, tmp_path)
        assert another.disk["restored"] == 0 and another.disk["written"] >= 1
    assert (await told(FULL, PROMPTS, tmp_path)).computed == TAILS  # the first is still there


async def test_a_restoration_that_is_not_waited_for_hurts_nobody(tmp_path: pathlib.Path) -> None:
    """Callers leave at any moment while their prefix is read."""
    cold = await told(FULL, PROMPTS, None, prompt_cache_bytes=0)
    await told(FULL, PROMPTS, tmp_path)
    draw = random.Random(1)
    for _ in range(6):
        async with open_system(families.loader(FULL), Settings(prompt_cache_dir=tmp_path)) as engine:
            texts: dict[int, str] = {}

            async def one(number: int, patience: float, engine: motet.Engine, texts: dict[int, str]) -> None:
                with trio.move_on_after(patience):
                    async with engine.generate(PROMPTS[number], max_tokens=6) as stream:
                        text = "".join([e.text async for e in stream if isinstance(e, motet.Text)])
                        texts[number] = text

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    patience = draw.uniform(0, 0.05) if number % 2 else 60
                    nursery.start_soon(one, number, patience, engine, texts)
            assert all(texts[number] == cold.texts[number] for number in texts)
            assert set(range(0, 8, 2)) <= set(texts)
            await engine.drain(30)
            assert engine.death is None


async def test_rows_that_leave_early_publish_what_was_computed(tmp_path: pathlib.Path) -> None:
    """While they decode, and while their prompt is read."""
    whole, long = PROMPTS[0], families.prompts((2000,), seed=9)[0]
    settings = Settings(prompt_cache_dir=tmp_path, prefill_step_size=256)
    async with open_system(families.loader(FULL), settings) as engine:
        async with engine.generate(whole, max_tokens=2000) as stream:
            async for _ in stream:
                break
        async with engine.generate(long, max_tokens=4):
            while engine.statistics()["tokens"]["prompt"] < len(whole) + 512:
                await trio.sleep(0.001)
        await engine.drain(30)
    again = await told(FULL, [whole, long], tmp_path)
    assert again.disk["restored"] == 2
    assert again.computed <= len(long) - 256


# --- damage -----------------------------------------------------------------------------------


def spoil(directory: pathlib.Path, how: str) -> None:
    for file in directory.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        if how == "cut":
            del data[len(data) // 2 :]
        elif how == "foreign":
            data = bytearray(b"not an entry" * 100)
        else:
            data[{"header": 200, "tokens": -len(data) // 2, "planes": -5}[how]] ^= 4
        file.write_bytes(data)


@pytest.mark.parametrize("how", [slow("cut"), slow("foreign"), slow("header"), "planes"])
async def test_a_damaged_file_costs_a_reading_and_nothing_else(how: str, tmp_path: pathlib.Path) -> None:
    first = await told(FULL, PROMPTS, tmp_path)
    spoil(tmp_path, how)
    again = await told(FULL, PROMPTS, tmp_path)
    assert again.texts == first.texts and again.computed == first.computed
    assert (await told(FULL, PROMPTS, tmp_path)).computed == TAILS  # it was written again


def real_entry(family: str) -> tuple[Draft, bytes]:
    """A few tokens' state of a real model, as it is written."""
    tokens = families.prompts((6,), seed=3)[0]
    model = families.loader(family)()[0]
    snapshots = Snapshots(model, Namespace(family))
    told = snapshots.export(Export(snapshots.store(read_in(model, tokens), 6).handle, 0, 1 << 30), busy=False)
    assert told.manifest is not None
    return Draft(Namespace(family), tuple(tokens), told.manifest, ()), told.data


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", LAYOUTS)
def test_every_byte_flipped_and_every_97th_cut_of_every_layout(family: str, tmp_path: pathlib.Path) -> None:
    of, data = real_entry(family)
    disk = LocalDisk(tmp_path)
    result = Writer(disk, 1 << 30).do(Write(0, data, of))
    assert isinstance(result, Written) and result.name is not None
    (known,) = scanned(Writer(disk, 1 << 30))
    assert read(disk, known) == data
    file = tmp_path / result.name
    good = file.read_bytes()
    bad = bytearray(good)
    for place in range(len(good)):
        bad[place] ^= 1 << place % 8
        file.write_bytes(bad)
        assert isinstance(read(disk, known), ReadFailed), place
        bad[place] = good[place]
    for cut in range(0, len(good), 97):
        file.write_bytes(good[:cut])
        assert isinstance(read(disk, known), ReadFailed), cut


# --- kill -9 ----------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(directory: pathlib.Path, ceiling: int, seed: int) -> Iterator[tuple[Any, int]]:
    """A process that writes, and where it tells of what is written."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_writer"])
    reading, told = os.pipe()
    with open(told, "wb") as end:
        os.set_inheritable(told, True)
        process = context.Process(
            target=write_until_killed, args=(str(directory), ceiling, seed, Passed(told))
        )
        process.start()
        end.close()
    try:
        yield process, reading
    finally:
        process.kill()
        process.join()
        os.close(reading)


def killed(directory: pathlib.Path, ceiling: int, seed: int, before: list[str]) -> list[str]:
    """A run that is killed at a random moment; the names of what is there then, the oldest first."""
    draw = random.Random(seed)
    directory.mkdir(exist_ok=True)
    with writing(directory, ceiling, seed) as (process, reading):
        first = os.read(reading, 1 << 16)  # it is at work
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        rest = b""
        while more := os.read(reading, 1 << 16):
            rest += more
    names = before + (first + rest).decode().split()
    assert du(directory) <= ceiling
    files = {file.name: file for file in scanned(Writer(LocalDisk(directory), ceiling))}
    assert du(directory) <= ceiling and not list(directory.glob("*.tmp"))
    for file in files.values():
        width = file.manifest.planes[0].shape[1]
        assert read(LocalDisk(directory), file) == content(draft(file.tokens, width))
    left = [name for name in names if name in files]
    # All that was told is there, but for the oldest, which go when the ceiling is reached.
    assert left and left == names[-len(left) :]
    assert left == names or du(directory) > ceiling - 200_000
    assert len(set(files) - set(names)) <= 1  # named, and killed before it was told
    return sorted(files, key=lambda name: (directory / name).stat().st_mtime_ns)


@pytest.mark.parametrize("ceiling", [1 << 40, 600_000], ids=["plenty", "little"])
def test_a_writer_that_is_killed_loses_nothing_that_it_told(ceiling: int, tmp_path: pathlib.Path) -> None:
    names: list[str] = []
    for seed in range(3):
        names = killed(tmp_path, ceiling, seed, names)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_writer_that_is_killed_200_times_loses_nothing_that_it_told(tmp_path: pathlib.Path) -> None:
    for ceiling in (1 << 40, 600_000):
        names: list[str] = []
        for seed in range(100):
            names = killed(tmp_path / str(ceiling), ceiling, seed, names)


def run_and_kill(command: list[str], seconds: float) -> None:
    """Kill a process so long after its first line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as engine:
        assert engine.stdout is not None and engine.stdout.readline() == b"ended\n"
        time.sleep(seconds)
        engine.kill()


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_after_an_engine_is_killed_warm_texts_are_the_cold_ones(tmp_path: pathlib.Path) -> None:
    """Twelve times, at random moments while it reads, writes and restores."""
    draw = random.Random(4)
    script = str(pathlib.Path(__file__).with_name("killed_engine.py"))
    restored = 0
    for seed in range(12):
        run_and_kill([sys.executable, script, str(tmp_path), str(seed)], draw.uniform(0, 1.5))
        assert du(tmp_path) <= killed_engine.CEILING
        prompts = [killed_engine.prompt(draw) for _ in range(6)]
        cold = await told(FULL, prompts, None, prompt_cache_bytes=0)
        warm = await told(FULL, prompts, tmp_path, prompt_cache_disk_bytes=killed_engine.CEILING)
        assert warm.texts == cold.texts and warm.disk["bad_files"] == 0
        assert du(tmp_path) <= killed_engine.CEILING
        restored += warm.disk["restored"]
    assert restored > 12


# --- the command line -------------------------------------------------------------------------


async def test_the_directory_is_listed_verified_and_emptied(tmp_path: pathlib.Path) -> None:
    await told(FULL, PROMPTS, tmp_path)
    (one,) = inspection.entries(tmp_path)
    assert one.filed is not None and "tokens, model" in one.line()
    assert [entry.fault for entry in inspection.verify(tmp_path)] == [""]
    spoil(tmp_path, "planes")
    assert [entry.fault for entry in inspection.verify(tmp_path)] == ["its planes are damaged"]
    spoil(tmp_path, "header")
    assert inspection.entries(tmp_path)[0].fault == "its header is damaged"
    assert inspection.remove(tmp_path, ["another"]) == []
    assert inspection.remove(tmp_path, None) == [one.name] and inspection.entries(tmp_path) == []
