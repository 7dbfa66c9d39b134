"""Which layout a cache has, by what it is, never by a model's name."""

from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from motet.engine.layouts.full import Full
from motet.engine.layouts.port import Layout
from motet.engine.layouts.recurrent import Recurrent
from motet.engine.layouts.rotating import Rotating

_FULL = Full()
_ROTATING = Rotating()
_RECURRENT = Recurrent()

# By the exact class: a subclass may hold what its parent does not, and a batch would lose it silently.
_LAYOUTS: dict[type, Layout] = {
    KVCache: _FULL,
    BatchKVCache: _FULL,
    RotatingKVCache: _ROTATING,
    BatchRotatingKVCache: _ROTATING,
    ArraysCache: _RECURRENT,
}


def layout_of(leaf: Any) -> Layout:
    """A leaf cache's layout.

    Raises:
        TypeError: no layout holds many rows of it.
    """
    layout = _LAYOUTS.get(type(leaf))
    if layout is None:
        raise TypeError(f"no batch layout for {type(leaf).__name__}")
    return layout


def unbatchable(caches: Sequence[Any]) -> list[str]:
    """The kinds among lone caches that have no batch layout."""
    return sorted({_kind(leaf) for leaf in leaves(caches) if not _has_layout(leaf)})


def _has_layout(leaf: Any) -> bool:
    return type(leaf) in _LAYOUTS and not getattr(leaf, "keep", 0)


def _kind(leaf: Any) -> str:
    return type(leaf).__name__ + (" that keeps its first tokens" if getattr(leaf, "keep", 0) else "")


def leaves(caches: Sequence[Any]) -> list[Any]:
    """The caches with every CacheList taken apart: a layer may hold several kinds (falcon_h1, DSA)."""
    flat: list[Any] = []
    for cache in caches:
        flat.extend(leaves(cache.caches) if isinstance(cache, CacheList) else [cache])
    return flat


def regrouped(caches: Sequence[Any], flat: Sequence[Any]) -> list[Any]:
    """Leaves put together as ``caches`` are."""
    rest = iter(flat)
    return [_like(cache, rest) for cache in caches]


# Not a closure: one that calls itself is a cycle, which would hold the caches until it is collected.
def _like(cache: Any, rest: Iterator[Any]) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_like(child, rest) for child in cache.caches))
    return next(rest)
