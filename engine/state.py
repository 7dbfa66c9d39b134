"""A row's caches as a value: what can be copied, cut and measured of them.

Capabilities are read off the caches, never off a model's name. How caches hold many rows is the layouts'
matter (layouts/).
"""

import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import CacheList, KVCache, can_trim_prompt_cache


def trimmable(caches: list[Any]) -> bool:
    """Whether a shorter prefix can be cut from these now."""
    # A ChunkedKVCache always says that it can be trimmed, also when it has let go of its front.
    whole = all(getattr(cache, "start_position", 0) == 0 for cache in caches)
    return whole and bool(can_trim_prompt_cache(caches))


def copyable(caches: list[Any]) -> bool:
    """Whether ``fresh_copy`` can make these anew from their state."""
    return all(hasattr(type(cache), "from_state") for cache in caches)


def fresh_copy(caches: list[Any], surplus: int = 0) -> list[Any]:
    """Caches over the same contents with array handles of their own.

    Caches write in place: with the same array objects two holders would see each other's writes;
    with fresh handles the first write copies.

    Args:
        caches: the source, unchanged.
        surplus: tokens to cut from the end.

    Raises:
        ValueError: a cache could not be cut by so many.
    """
    fresh = [type(cache).from_state(_fresh_handles(cache.state)) for cache in caches]
    if surplus:
        for cache in fresh:
            _cut(cache, surplus)
    return fresh


def _cut(cache: Any, surplus: int) -> None:
    if isinstance(cache, CacheList):  # its trim() tells of its last child alone
        for child in cache.caches:
            _cut(child, surplus)
    elif cache.trim(surplus) != surplus:
        raise ValueError(f"a {type(cache).__name__} cannot be cut by {surplus} tokens")
    elif isinstance(cache, KVCache) and not cache.empty():
        # Else the first write would copy what was cut off, too: a short row as large as a long snapshot.
        cache.keys, cache.values = cache.keys_and_values()


def _fresh_handles(state: Any) -> Any:
    def fresh(leaf: Any) -> Any:
        return leaf[:] if isinstance(leaf, mx.array) else copy.copy(leaf)

    return tree_map(fresh, state)


def begin_evaluation(caches: list[Any]) -> None:
    """Queue the evaluation of caches' arrays: lazy, a slice keeps alive all that it is cut from."""
    mx.async_eval([cache.state for cache in caches])  # type: ignore[no-untyped-call]


def nbytes(caches: list[Any]) -> int:
    """Bytes allocated, unused room included."""
    return sum(cache.nbytes for cache in caches)
