"""Tokens as bytes. A token may be part of a character, which no decoder would tell of it alone."""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """The bytes of each token of a tokenizer.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer._tokenizer, "backend_tokenizer", None)
        self._backend = backend if isinstance(backend, Tokenizer) else None
        self._added: dict[int, Any] = {}
        if self._backend is not None:
            self._added = self._backend.get_added_tokens_decoder()
            self._read = _reader(self._backend.decoder)
        self.data = functools.lru_cache(maxsize=1 << 16)(self._data)
        """The bytes of a token; none for an id that the tokenizer does not know."""

    def _data(self, token: int) -> bytes:
        if self._backend is None:
            return str(self._tokenizer.decode([token])).encode()
        if token in self._added:
            return str(self._added[token].content).encode()
        written = self._backend.id_to_token(token)
        return b"" if written is None else self._read(written)


def _reader(decoder: Any) -> Callable[[str], bytes]:
    """How a tokenizer's decoder reads the tokens in its vocabulary."""
    steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
        return lambda written: b"".join(
            bytes([letters[letter]]) if letter in letters else letter.encode() for letter in written
        )
    replaced = [_replacement(step) for step in steps if step["type"] in {"Replace", "Metaspace", "WordPiece"}]

    def read(written: str) -> bytes:
        byte = _BYTE.fullmatch(written)
        if byte is not None and "ByteFallback" in kinds:
            return bytes.fromhex(byte[1])
        for old, new in replaced:
            written = written.replace(old, new)
        return written.encode()

    return read


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for one in decoder["decoders"] for step in _steps(one)]
    return [decoder]


def _replacement(step: dict[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "WordPiece":
        return step["prefix"], ""
    pattern = step["pattern"].get("String", "")
    return pattern or "\u2581", step["content"] if pattern else " "
