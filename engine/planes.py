"""Snapshots as plain bytes: a row's caches taken apart into arrays and a description, and built again.

mlx-lm's save_prompt_cache writes a whole file at once from the thread that owns the arrays, and its
load_prompt_cache builds whatever class a file names; here bytes go out and come in by pieces, and only the
kinds that the loaded model itself makes are built.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import mlx.core as mx
from mlx_lm.models import cache as mlx_lm_cache
from mlx_lm.models.cache import CacheList, KVCache

_DTYPES = {
    mx.bool_: "BOOL", mx.uint8: "U8", mx.int8: "I8", mx.uint16: "U16", mx.int16: "I16", mx.float16: "F16",
    mx.bfloat16: "BF16", mx.uint32: "U32", mx.int32: "I32", mx.float32: "F32", mx.uint64: "U64",
    mx.int64: "I64", mx.complex64: "C64",
}  # fmt: skip
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}


class NotPortable(Exception):
    """Caches that cannot be taken apart, or a description that they cannot be built from."""


@attrs.frozen
class Apart:
    """Caches taken apart. The arrays are views of the caches': nothing is copied."""

    structure: str
    """JSON: [kind, state] a cache, arrays as {"plane": number}."""
    arrays: list[mx.array]

    @property
    def planes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Safetensors' name of the type and the shape of each array."""
        return [(_DTYPES[array.dtype], tuple(array.shape)) for array in self.arrays]


def take_apart(caches: Sequence[Any]) -> Apart:
    """Caches of one row as a description and arrays.

    Raises:
        NotPortable: of a class that mlx-lm's cache module does not know by name, or without state.
    """
    arrays: list[mx.array] = []
    described = [[_kind(cache), _described(_state(cache), arrays)] for cache in caches]
    return Apart(json.dumps(described, separators=(",", ":")), arrays)


def _kind(cache: Any) -> str:
    if isinstance(cache, CacheList):
        return "+".join(["CacheList", *(f"({_kind(child)})" for child in cache.caches)])
    name = type(cache).__name__
    if getattr(mlx_lm_cache, name, None) is not type(cache) or not hasattr(cache, "from_state"):
        raise NotPortable(f"a {name} cannot be taken apart")
    return name


def _state(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return [(_state(child), type(child).__name__) for child in cache.caches]
    if type(cache) is KVCache and not cache.empty():
        return (*cache.keys_and_values(), cache.offset)  # without its room for more
    return cache.state


def _described(state: Any, arrays: list[mx.array]) -> Any:
    if isinstance(state, mx.array):
        arrays.append(state)
        return {"plane": len(arrays) - 1}
    if isinstance(state, list | tuple):
        return [_described(part, arrays) for part in state]
    if state is None or isinstance(state, int | float | str):
        return state
    raise NotPortable(f"a state that holds a {type(state).__name__}")


def put_together(structure: str, arrays: Sequence[mx.array], like: Sequence[Any]) -> list[Any]:
    """The caches of ``take_apart``.

    Args:
        structure: the description.
        arrays: as many as were taken out.
        like: empty caches of the model: the kinds must be theirs.

    Raises:
        NotPortable: they are not, or the description is none.
    """
    try:
        described = json.loads(structure)
        if [kind for kind, _ in described] != [_kind(cache) for cache in like]:
            raise NotPortable("not the model's kinds of caches")
        return [
            type(cache).from_state(_filled(state, arrays))
            for cache, (_, state) in zip(like, described, strict=True)
        ]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise NotPortable(f"not a description of caches: {error}") from error


def _filled(described: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(described, dict):
        return arrays[described["plane"]]
    if isinstance(described, list):
        return [_filled(part, arrays) for part in described]
    return described


class Exporting:
    """Bytes of arrays, by pieces from front to back.

    One array is held as contiguous bytes at a time.
    """

    def __init__(self, arrays: Sequence[mx.array]) -> None:
        self._flats = self._flat(arrays)
        self._current: mx.array | None = None
        self._at = 0
        self.position = 0
        """Bytes that have been given out."""

    def _flat(self, arrays: Sequence[mx.array]) -> Iterator[mx.array]:
        for array in arrays:
            if array.size:
                flat = mx.contiguous(array).reshape(-1).view(mx.uint8)
                mx.eval(flat)
                yield flat

    def next(self, most: int) -> bytes:
        """The next ``most`` bytes, fewer only at the end."""
        parts: list[bytes] = []
        room = most
        while room:
            if self._current is None:
                self._current, self._at = next(self._flats, None), 0
                if self._current is None:
                    break
            view: Any = self._current  # an array is a buffer, which its stubs do not say
            parts.append(bytes(memoryview(view)[self._at : self._at + room]))
            room -= len(parts[-1])
            self._at += len(parts[-1])
            if self._at == self._current.size:
                self._current = None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.position += len(data)
        return data


class Importing:
    """Arrays made of bytes that come by pieces."""

    def __init__(self, planes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self._planes = list(planes)
        self._parts: list[mx.array] = []
        self._missing = self._size(0)
        self.arrays: list[mx.array] = []
        """Those that are whole."""
        self._skip_empty()

    def _size(self, number: int) -> int:
        if number >= len(self._planes):
            return 0
        dtype, shape = self._planes[number]
        return int(math.prod(shape) * _BY_NAME[dtype].size)

    def add(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            NotPortable: more than the arrays hold.
        """
        view = memoryview(data)
        while view:
            if not self._missing:
                raise NotPortable("more bytes than the arrays hold")
            taken: Any = view[: self._missing]  # as above
            part = mx.array(taken)
            self._missing -= part.size
            view = view[part.size :]
            self._parts.append(part)
            if not self._missing:
                self._close()

    def _close(self) -> None:
        dtype, shape = self._planes[len(self.arrays)]
        whole = self._parts[0] if len(self._parts) == 1 else mx.concatenate(self._parts)
        array = whole.view(_BY_NAME[dtype]).reshape(shape) if dtype != "BOOL" else whole.astype(mx.bool_)
        self._finish(array.reshape(shape))

    def _finish(self, array: mx.array) -> None:
        mx.eval(array)
        self._parts = []
        self.arrays.append(array)
        self._missing = self._size(len(self.arrays))
        self._skip_empty()

    def _skip_empty(self) -> None:
        while len(self.arrays) < len(self._planes) and not self._missing:
            dtype, shape = self._planes[len(self.arrays)]
            self.arrays.append(mx.zeros(shape, _BY_NAME[dtype]))
            self._missing = self._size(len(self.arrays))

    @property
    def whole(self) -> bool:
        """Whether all arrays are there."""
        return len(self.arrays) == len(self._planes)
