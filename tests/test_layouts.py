"""Layouts: rows join, stay, leave and are extracted, whatever holds them."""

import gc
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache, RotatingKVCache

import families
from motet.engine.batch import Batch
from motet.engine.group import Group
from motet.engine.layouts.choice import layout_of, leaves, unbatchable
from motet.engine.layouts.full import Full
from motet.engine.layouts.recurrent import Recurrent
from motet.engine.row import Row
from motet.engine.session import SamplingSession

FAMILIES = ("llama", "llama_swa", "gemma3n", "qwen3_5", "mamba", "falcon_h1", "deepseek_v32")


def prepared(model: Any, caches: list[Any], number: int, length: int) -> Batch:
    (prompt,) = families.prompts((length,), seed=number)
    batch = Batch([Row(number, 0, SamplingSession(), frozenset(), 1 << 30)], caches)
    batch.read(model, [prompt[:-1]])
    batch.begin(model, prompt[-1:])
    return batch


@pytest.mark.parametrize("family", FAMILIES)
def test_a_joiner_never_drops_the_rows_that_run(family: str) -> None:
    """Full batches and wrapped rings included: every leaf holds every row, and each goes on as alone."""
    loaded, _ = families.loader(family)()
    group, seen = Group(loaded.module), dict[int, list[int]]()

    def steps(count: int) -> None:
        for _ in range(count):
            for one in group.step() + group.settle():
                seen.setdefault(one.row.number, []).append(one.token)

    for number, length in enumerate((5, 40, 17, 3)):
        group.join(prepared(loaded.module, loaded.caches(), number, length))
        assert [row.number for row in group.rows] == list(range(number + 1))
        for leaf in leaves(group.batch.caches):
            states = [leaf.keys] if hasattr(leaf, "keys") else leaf.cache
            assert all(state is None or state.shape[0] == number + 1 for state in states)
        steps(20)  # a window of the tiny families has 16 tokens
    for number, length in enumerate((5, 40, 17, 3)):
        alone = Group(loaded.module)
        alone.join(prepared(loaded.module, loaded.caches(), number, length))
        want = [one.token for _ in range(30) for one in alone.step() + alone.settle()]
        assert seen[number][:20] == want[:20]


@pytest.mark.parametrize("layout", [Recurrent(), Full()])
def test_an_extracted_row_does_not_keep_the_whole_batchs_memory(layout: Any) -> None:
    lone: list[Any] = []
    for _ in range(8):
        cache: Any = ArraysCache(2) if isinstance(layout, Recurrent) else KVCache()
        if isinstance(layout, Recurrent):
            cache[0] = mx.ones((1, 1 << 18))  # the other slot stays empty
        else:
            cache.update_and_fetch(mx.ones((1, 1, 1024, 256)), mx.ones((1, 1, 1024, 256)))
        lone.append(cache)
    rows = layout.merge(lone)
    mx.eval(rows.state)
    gc.collect()
    before = mx.get_active_memory()
    one = layout.extract(rows, 3)
    mx.eval(one.state)
    size = mx.get_active_memory() - before
    assert size > 0
    del rows, lone
    gc.collect()
    assert mx.get_active_memory() <= before - 7 * size


def test_right_padding_goes_to_the_left_value_for_value_as_mlx_lms() -> None:
    shape, padding = (3, 2, 7, 4), [0, 5, 2]
    ours, theirs = BatchKVCache([1, 0, 2]), BatchKVCache([1, 0, 2])
    for cache in (ours, theirs):
        cache.prepare(right_padding=padding)
        mx.random.seed(1)
        cache.update_and_fetch(mx.random.normal(shape), mx.random.normal(shape))
    Full().finalize(ours)
    theirs.finalize()
    assert all(
        mx.array_equal(one, other) for one, other in zip(ours.state[:4], theirs.state[:4], strict=True)
    )
    Full().finalize(ours)  # once is enough
    assert mx.array_equal(ours.keys, theirs.keys)


def test_a_slot_that_no_row_has_filled_stays_empty() -> None:
    rows = Recurrent().merge([ArraysCache(2), ArraysCache(2)])
    assert rows.cache == [None, None] and Recurrent().extract(rows, 1).cache == [None, None]


def test_what_has_no_layout_is_named() -> None:
    class Other(KVCache):
        """May hold what its parent does not."""

    assert unbatchable([KVCache(), Other(), RotatingKVCache(8, keep=4)]) == [
        "Other",
        "RotatingKVCache that keeps its first tokens",
    ]
    with pytest.raises(TypeError, match="Other"):
        layout_of(Other())
