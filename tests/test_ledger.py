"""What rows are projected to cost, against what the engine's own batches of them hold."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache, RotatingKVCache

import families
from motet.actors.ledger import Ledger
from motet.engine import measuring
from motet.engine.batch import Batch
from motet.engine.group import Group
from motet.engine.memory import automatic_budget
from motet.engine.model import Model
from motet.engine.projection import GRANULE, LOGITS_ARRAYS, Activations, Projection, Ring, RowLength
from motet.engine.row import Row
from motet.engine.session import SamplingSession
from motet.engine.state import fresh_copy

CHUNK = 128


def model_of(family: str) -> Model:
    return families.loader(family)()[0]


def prepared(model: Model, number: int, length: RowLength) -> Batch:
    """A row whose prompt has been read, in chunks."""
    prompt = families.prompts((length.prompt,), number)[0]
    batch = Batch([Row(number, 0, SamplingSession(), frozenset(), length.limit)], model.caches())
    for start in range(0, length.prompt - 1, CHUNK):
        batch.read(model.module, [prompt[start : min(start + CHUNK, length.prompt - 1)]])
    batch.begin(model.module, prompt[-1:])
    return batch


def held(batch: Batch) -> int:
    return batch.nbytes


FULL, ROTATING, RECURRENT = ("llama", "deepseek_v3"), ("llama_swa", "gemma3_text"), ("granitemoehybrid",)


@pytest.mark.parametrize("family", FULL + ROTATING + RECURRENT)
def test_a_group_never_holds_more_than_is_projected_nor_much_less(family: str) -> None:
    model = model_of(family)
    projection = measuring.measure(model, batched=True, chunk=CHUNK)
    rows = [RowLength(300, 50), RowLength(40, 300), RowLength(700, 20)]
    group, most = Group(model.module), 0
    for number, row in enumerate(rows):
        group.join(prepared(model, number, row))
        most = max(most, held(group.batch))
    for _ in range(19):
        group.step()
        most = max(most, held(group.batch))
    granules = len(rows) * (GRANULE + CHUNK) * _a_column(projection)
    assert most <= projection.group(rows) <= 2 * most + granules


def _a_column(projection: Projection) -> int:
    return projection.per_token + sum(ring.per_token for ring in projection.rings)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mamba2", "llama4", "deepseek_v41"])
def test_a_lone_row_never_holds_more_than_is_projected_nor_much_less(family: str) -> None:
    model = model_of(family)
    projection = measuring.measure(model, batched=False, chunk=CHUNK)
    length = RowLength(400, 30)
    lone = prepared(model, 1, length)
    group = Group(model.module)
    group.join(lone)
    most = held(group.batch)
    for _ in range(29):
        group.step()
        most = max(most, held(group.batch))
    assert most <= projection.group([length]) <= 2 * most + GRANULE * _a_column(projection)


@pytest.mark.parametrize("family", FULL + ROTATING + RECURRENT)
def test_a_chunk_holds_no_more_than_is_projected(family: str) -> None:
    """Caches and activations together, by MLX's counter, at depths where nothing was measured."""
    model = model_of(family)
    size, chunks = 384, 5
    projection = measuring.measure(model, batched=True, chunk=size)
    batch = Batch([Row(1, 0, SamplingSession(), frozenset(), 8)], model.caches())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for start in range(0, size * chunks, size):
        batch.read(model.module, [families.prompts((size,), start)[0]])
    length = RowLength(size * chunks, 8)
    assert mx.get_peak_memory() - before <= projection.needed([length])


RUNNABLE = [family for family in families.FAMILIES if family not in families.UNSAFE]


@pytest.mark.parametrize("family", RUNNABLE)
def test_every_family_is_measured(family: str) -> None:
    model = model_of(family)
    projection = measuring.measure(model, batched=family in families.BATCHED, chunk=CHUNK)
    lone = prepared(model, 1, RowLength(200, 1))
    assert held(lone) <= projection.group([RowLength(200, 1)])
    assert projection.activations.per_token > 0


@pytest.mark.parametrize("family", FULL)
def test_when_the_longer_row_has_left_its_memory_is_free_at_the_next_step(family: str) -> None:
    model = model_of(family)
    projection = measuring.measure(model, batched=True, chunk=CHUNK)
    group = Group(model.module)
    before = mx.get_active_memory()
    long, short = RowLength(1500, 8), RowLength(20, 8)
    group.join(prepared(model, 1, long))
    group.join(prepared(model, 2, short))
    group.drop([1])
    group.step()
    group.settle()
    mx.synchronize()
    assert mx.get_active_memory() - before <= projection.group([short])


def test_a_row_that_begins_with_a_little_of_a_long_snapshot_is_no_larger_than_another() -> None:
    model = model_of("llama")
    projection = measuring.measure(model, batched=True, chunk=CHUNK)
    snapshot = prepared(model, 1, RowLength(1500, 1)).caches
    short = Batch(
        [Row(2, 20, SamplingSession(), frozenset(), 8)], fresh_copy(snapshot, surplus=snapshot[0].offset - 20)
    )
    before = mx.get_active_memory()
    short.read(model.module, [[5] * 10])
    mx.synchronize()
    assert mx.get_active_memory() - before <= projection.group([RowLength(30, 8)])


# --- the formulas by hand ---------------------------------------------------------------------


def projection(**changes: Any) -> Projection:
    plain: dict[str, Any] = {
        "fixed": 0,
        "per_token": 0,
        "rings": (),
        "most_room": 1024,
        "chunk": 100,
        "activations": Activations(),
        "vocabulary": 0,
        "keeps": False,
    }
    return Projection(**(plain | changes))


def test_all_rows_are_as_wide_as_the_longest_with_the_room_of_a_join() -> None:
    full = projection(per_token=3)
    assert full.group([]) == full.needed([]) == 0
    assert full.group([RowLength(40, 10)]) == 3 * (256 + 256)
    assert full.group([RowLength(40, 10), RowLength(4000, 97)]) == 2 * 3 * (4352 + 256)
    assert full.group([RowLength(40, 600), RowLength(4000, 96)]) == 2 * 3 * (4096 + 768)
    assert full.group([RowLength(40, 5000)]) == 3 * (5120 + 1024)  # no more than a join makes
    assert projection(per_token=3, most_room=0).group([RowLength(40, 5000)]) == 3 * (5120 + 256)


def test_rings_are_capped_and_states_are_fixed() -> None:
    rows = [RowLength(4000, 96)] * 2
    assert projection(rings=(Ring(100, 5), Ring(9000, 1))).group(rows) == 2 * (500 + 4352)
    assert projection(fixed=77).group(rows) == 2 * 77


def test_what_comes_on_top_is_the_group_once_more_a_chunk_and_the_logits() -> None:
    rows = [RowLength(900, 124)] * 3
    its = projection(per_token=2, activations=Activations(8, 4, 2), vocabulary=10)
    assert its.rewriting(rows) == its.group(rows) == 3 * 2 * (1024 + 256)
    assert its.reading(rows) == 1.25 * (8 + 4 * 132 + 2 * 132 * 1024)
    assert its.logits(rows) == 3 * 10 * 4 * LOGITS_ARRAYS
    assert its.needed(rows) == its.group(rows) + its.rewriting(rows) + its.reading(rows) + its.logits(rows)


def test_a_snapshot_of_each_prompt_is_counted_if_any_are_taken() -> None:
    rows = [RowLength(300, 50), RowLength(4000, 96)]
    columns = (512 + 256) + (4096 + 256)
    assert projection(per_token=2, keeps=True).keeping(rows) == 2 * columns
    assert projection(fixed=7, keeps=True).keeping(rows) == 2 * 7
    assert projection(rings=(Ring(1000, 3),), keeps=True).keeping(rows) == 3 * (768 + 1132)
    assert projection(per_token=2, fixed=7, rings=(Ring(1000, 3),)).keeping(rows) == 0


def test_a_ring_holds_the_last_chunk_too_while_a_prompt_is_read() -> None:
    rows = [RowLength(900, 124)] * 3
    assert projection(rings=(Ring(50, 2),)).reading(rows) == 2 * (4 * (50 + 132) - 6 * 50)
    assert projection(rings=(Ring(500, 2),)).reading(rows) == 0  # the group's rewriting counts more


def test_the_ledger_counts_who_lives_and_a_candidate_beside_them() -> None:
    its = projection(per_token=1)
    ledger = Ledger(its)
    long, short = RowLength(4000, 96), RowLength(10, 10)
    assert len(ledger) == ledger.needed() == 0
    ledger.enter(1, short)
    assert ledger.needed() == its.needed([short])
    assert ledger.needed(long) == its.needed([short, long])
    ledger.enter(2, long)
    ledger.leave(1)
    assert len(ledger) == 1 and ledger.needed() == its.needed([long])


# --- without a budget given -------------------------------------------------------------------


def test_the_automatic_budget_is_what_weights_and_headroom_leave() -> None:
    gib = 1 << 30
    large, small = automatic_budget(8 * gib, usable=64 * gib), automatic_budget(2 * gib, usable=4 * gib)
    assert large.budget == 56 * gib - int(6.4 * gib) and not large.floored
    assert small.budget == gib and not small.floored
    none = automatic_budget(4 * gib, usable=4 * gib)
    assert none.budget == int(0.05 * 4 * gib) and none.floored
    assert automatic_budget(0).usable > 0


def test_the_granule_is_mlx_lms() -> None:
    """Projection is plain numbers and imports no cache; this holds it to theirs."""
    assert GRANULE == KVCache.step == BatchKVCache.step == RotatingKVCache.step
