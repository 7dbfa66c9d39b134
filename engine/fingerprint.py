"""Which model is this? A digest of what its rows' states depend on.

It is taken of the loaded weights, every byte of them, and not of files: names, sizes and times lie, sampled
bytes miss a change elsewhere, and a model may never have been a file. It costs one reading of the weights on
the device, about what a decode step does.
"""

import hashlib
import json
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from motet.engine.model import Model

_SLICE = 1 << 24  # elements that are summed at once: bounds the memory that this takes


def fingerprint(model: Model) -> str:
    """32 hexadecimal digits: of the configuration, each weight's name, type, shape and content, and mlx-lm's
    version, whose model code gives the states their meaning.

    The content enters as a sum of its words with odd weights, modulo 2^32: any change of one word changes
    it. Not proof against malice.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(model.config, sort_keys=True, default=str).encode())
    digest.update(version("mlx-lm").encode())
    leaves: Any = tree_flatten(model.module.parameters())  # type: ignore[no-untyped-call]
    for name, array in sorted(leaves, key=lambda leaf: str(leaf[0])):
        digest.update(f"{name} {array.dtype} {array.shape} {_sum(array)}\n".encode())
    return digest.hexdigest()


def _sum(array: mx.array) -> int:
    words = _words(array)
    total = 0
    for start in range(0, words.size, _SLICE):
        part = words[start : start + _SLICE].astype(mx.uint32)
        odd = 2 * mx.arange(start, start + part.size, dtype=mx.uint32) + 1
        value: Any = mx.sum(part * odd).item()
        total = (total * 3 + value) % (1 << 32)
    return total


def _words(array: mx.array) -> mx.array:
    """[n] the array's bits as unsigned integers of at most 32 bits."""
    flat = mx.contiguous(array).reshape(-1)
    return flat.view({1: mx.uint8, 2: mx.uint16}.get(array.dtype.size, mx.uint32))
