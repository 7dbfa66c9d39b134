"""Snapshots as bytes: out of the device and in again, whatever the caches; and the model's fingerprint."""

import gc
import random
from typing import Any

import mlx.core as mx
import pytest

import families
from motet.actors.snapshots import Snapshots
from motet.channels.device import Export, Exported, Restore, Snapshot
from motet.channels.manifest import Manifest
from motet.channels.namespace import Namespace
from motet.engine.batch import Batch
from motet.engine.fingerprint import fingerprint
from motet.engine.layouts.choice import leaves
from motet.engine.row import Row
from motet.engine.sampling import SamplingSession
from motet.engine.state import copyable

NAMESPACE = Namespace("tiny")
PORTABLE = [f for f in families.FAMILIES if f not in (*families.UNSAFE, "deepseek_v41")]
LARGE = ["llama", "llama_swa", "deepseek_v32", "gemma3n"]


def read_in(model: Any, tokens: list[int]) -> list[Any]:
    caches: list[Any] = model.caches()
    model.module(mx.array([tokens]), cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches


def exported(snapshots: Snapshots, handle: int, most: int) -> tuple[Manifest, bytes]:
    data, manifest = b"", None
    while manifest is None or len(data) < manifest.nbytes:
        piece = snapshots.export(Export(handle, len(data), most), busy=False)
        assert piece.manifest is not None and 0 < len(piece.data) <= most
        manifest = piece.manifest
        data += piece.data
    return manifest, data


def restored(
    snapshots: Snapshots, manifest: Manifest, data: bytes, cuts: list[int], namespace: Namespace = NAMESPACE
) -> Snapshot | str:
    """A restoration in pieces that end at ``cuts``."""
    start = 0
    for cut in [*cuts, len(data)]:
        first = manifest if start == 0 else None
        told = snapshots.restore(Restore(1, data[start:cut], first, namespace))
        if told.error is not None:
            return told.error
        start = cut
    assert told.snapshot is not None
    return told.snapshot


def logits(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    told: mx.array = model.module(mx.array([tokens]), cache=caches)
    mx.eval(told)
    return told


@pytest.mark.parametrize("family", PORTABLE)
def test_a_snapshot_that_went_through_bytes_goes_on_bit_for_bit(family: str) -> None:
    """In pieces that end anywhere; past a window's end; the model is loaded anew."""
    tokens, more = families.prompts((40, 5), seed=3)
    model = families.loader(family)()[0]
    first = Snapshots(model, NAMESPACE)
    told = first.store(read_in(model, tokens), 40)
    assert copyable(model.caches())
    manifest, data = exported(first, told.handle, 1000)
    again = families.loader(family)()[0]
    second = Snapshots(again, NAMESPACE)
    draw = random.Random(family)
    cuts = sorted(draw.sample(range(1, len(data)), 5))
    snapshot = restored(second, Manifest.decoded(manifest.encoded()), data, cuts)
    assert isinstance(snapshot, Snapshot), snapshot
    assert (snapshot.length, snapshot.trimmable) == (40, told.trimmable)
    want = logits(model, first.copy(told.handle, 40), more)
    assert mx.array_equal(logits(again, second.copy(snapshot.handle, 40), more), want)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_whatever_the_type(dtype: mx.Dtype) -> None:
    model = families.loader("llama", dtype)()[0]
    snapshots = Snapshots(model, NAMESPACE)
    told = snapshots.store(read_in(model, [5] * 20), 20)
    manifest, data = exported(snapshots, told.handle, 333)
    snapshot = restored(snapshots, manifest, data, [])
    assert isinstance(snapshot, Snapshot)
    assert exported(snapshots, snapshot.handle, 1 << 20) == (manifest, data)


def test_room_for_more_tokens_is_not_carried() -> None:
    model = families.loader("llama")()[0]
    snapshots = Snapshots(model, NAMESPACE)
    told = snapshots.store(read_in(model, [5] * 20), 20)
    manifest, _ = exported(snapshots, told.handle, 1 << 20)
    assert manifest.nbytes * 256 == told.nbytes * 20


def test_what_is_not_the_models_is_not_built() -> None:
    llama, mamba = families.loader("llama")()[0], families.loader("mamba")()[0]
    snapshots, others = Snapshots(llama, NAMESPACE), Snapshots(mamba, NAMESPACE)
    manifest, data = exported(snapshots, snapshots.store(read_in(llama, [5] * 20), 20).handle, 1 << 20)
    assert "kinds of caches" in str(restored(others, manifest, data, []))
    assert "namespace" in str(restored(snapshots, manifest, data, [], Namespace("tiny", scheme="affine8")))
    assert "more bytes" in str(restored(snapshots, manifest, data + b"x", []))
    assert isinstance(restored(snapshots, manifest, data, []), Snapshot)


def test_a_snapshot_that_is_forgotten_halfway_cannot_be_had() -> None:
    model = families.loader("llama")()[0]
    snapshots = Snapshots(model, NAMESPACE)
    handle = snapshots.store(read_in(model, [5] * 20), 20).handle
    assert snapshots.export(Export(handle, 0, 100), busy=False).manifest is not None
    snapshots.forget((handle,))
    for start in (100, 0):
        told = snapshots.export(Export(handle, start, 100), busy=True)
        assert told == Exported(handle, start, None, b"", told.seconds, busy=True)


def test_bytes_that_are_given_up_leave_no_memory_behind() -> None:
    model = families.loader("llama")()[0]
    snapshots = Snapshots(model, NAMESPACE)
    handle = snapshots.store(read_in(model, [5] * 2000), 2000).handle
    manifest, data = exported(snapshots, handle, 1 << 20)
    snapshots.forget((handle,))
    gc.collect()
    before = mx.get_active_memory()
    snapshots.restore(Restore(1, data[: len(data) // 2], manifest, NAMESPACE))
    assert mx.get_active_memory() > before + len(data) // 3
    snapshots.discard(1)
    gc.collect()
    assert mx.get_active_memory() <= before + 1000


@pytest.mark.parametrize("family", LARGE)
def test_a_stored_row_does_not_keep_its_neighbours_memory(family: str) -> None:
    """Extracted from a batch, and copied from a row that goes on: only its own bytes stay."""
    model = families.loader(family)()[0]
    snapshots = Snapshots(model, NAMESPACE)
    parts = []
    for number in range(8):
        row = Row(number, 0, SamplingSession(), frozenset(), 99)
        parts.append(Batch([row], model.caches()))
        parts[-1].read(model.module, [[5] * 600])
    gc.collect()
    before = mx.get_active_memory()
    batch = Batch.of(parts)
    told = snapshots.store(batch.extract(3), 600)
    del batch
    gc.collect()
    mx.synchronize()
    planes = len(leaves(model.caches())) * 2
    # MLX copies nothing where it would spare less than 16 KiB.
    assert mx.get_active_memory() - before <= told.nbytes + planes * 16384 < 4 * told.nbytes
    snapshots.forget((told.handle,))


# --- fingerprints -----------------------------------------------------------------------------


def test_the_same_model_has_the_same_fingerprint_and_any_other_another() -> None:
    """One bit of one weight, a configuration's entry, a type, a family."""
    load = families.loader("llama")
    same = fingerprint(load()[0])
    assert fingerprint(load()[0]) == same
    others = families.loader("llama", mx.bfloat16), families.loader("qwen3")
    told = {same, *(fingerprint(other()[0]) for other in others)}
    changed = load()[0]
    changed.config["rope_theta"] = 12345.0
    told.add(fingerprint(changed))
    for place in (0, 17, -1):
        one = load()[0]
        weight = one.module.model.layers[1].mlp.up_proj.weight
        flat = weight.reshape(-1)
        flat[place] = flat[place] * (1 + 2**-20)
        one.module.model.layers[1].mlp.up_proj.weight = flat.reshape(weight.shape)
        told.add(fingerprint(one))
    swapped = load()[0]
    layer = swapped.module.model.layers[0].mlp
    weight = layer.up_proj.weight
    layer.up_proj.weight = mx.concatenate([weight[1:2], weight[:1], weight[2:]])
    told.add(fingerprint(swapped))
    assert len(told) == 8
