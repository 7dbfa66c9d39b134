"""Joining in pieces gives what mlx-lm's extend gives, wherever the rows are."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache

from motet.engine.joining import Joining

LAYERS = 5


def tokens(rows: int, length: int, seed: int) -> tuple[mx.array, mx.array]:
    """Keys and values [rows, 2, length, 4]."""
    key = mx.random.key(seed)
    return tuple(mx.random.normal((rows, 2, length, 4), key=k) for k in mx.random.split(key))  # type: ignore[return-value]


def solo(length: int, seed: int) -> list[KVCache]:
    caches = [KVCache() for _ in range(LAYERS)]
    for layer, cache in enumerate(caches):
        cache.update_and_fetch(*tokens(1, length, 100 * seed + layer))
    return caches


def step(caches: list[Any], rows: int, seed: int) -> None:
    for layer, cache in enumerate(caches):
        cache.update_and_fetch(*tokens(rows, 1, 1000 * seed + layer))


def batch(lengths: list[int]) -> list[Any]:
    rows = [solo(length, seed) for seed, length in enumerate(lengths)]
    if len(rows) == 1:
        return rows[0]
    return [KVCache.merge([row[layer] for row in rows]) for layer in range(LAYERS)]


def contents(cache: Any) -> tuple[Any, ...]:
    keys, values = cache.keys_and_values()
    return (*tuple(np.array(a) for a in (keys, values, cache.offset, cache.left_padding)), cache._idx)


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("joiners", [[1], [9], [300], [600], [3, 9, 2], [400, 2]])
@pytest.mark.parametrize("running", [[4], [260], [7, 12, 300], [255, 3]])
def test_a_join_in_pieces_equals_mlx_lms_extend(running: list[int], joiners: list[int], pieces: int) -> None:
    """With a step between two pieces, and steps after it; every column, offset and padding the same."""
    ours, theirs = batch(running), batch(running)
    joining = Joining(ours, batch(joiners), ahead=40)
    joining.plan(pieces)
    steps = 0
    while not joining.advance():
        step(ours, len(running), steps)
        steps += 1
    assert joining.fits()
    for seed in range(steps):
        step(theirs, len(running), seed)
    if len(running) == 1:
        theirs = [type(cache).merge([cache]) for cache in theirs]
    for cache, new in zip(theirs, batch(joiners), strict=True):
        cache.extend(type(new).merge([new]) if len(joiners) == 1 else new)
    joined: list[BatchKVCache] = joining.caches()
    for seed in (70, 71):
        for mine, upstream in zip(joined, theirs, strict=True):
            for a, b in zip(contents(mine), contents(upstream), strict=True):
                assert np.array_equal(a, b)
        step(joined, len(running) + len(joiners), seed)
        step(theirs, len(running) + len(joiners), seed)


def test_a_join_that_the_steps_outran_is_seen() -> None:
    running = batch([4, 6])
    joining = Joining(running, batch([5]), ahead=40)
    joining.plan(2)
    joining.advance()
    step(running, 2, 0)
    step(running, 2, 1)
    joining.advance()
    assert not joining.fits()
