"""A toy tokenizer whose tokens are whatever pieces of bytes one likes, decoded by the tokenizers library."""

import importlib
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
from tokenizers import AddedToken, Tokenizer, decoders, models

from motet.engine.output import Output
from motet.engine.pieces import Piece
from motet.engine.reasoning import Markup


def _letters() -> dict[int, str]:
    """The letter that byte-level tokenizers write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_LETTERS = _letters()


class Toy:
    """As mlx-lm's TokenizerWrapper: what the pipeline asks of it.

    Args:
        pieces: the vocabulary, as bytes.
        special: special tokens.
        tools: a parser of mlx-lm's, by its module's name.
        think: the markers of thinking.
    """

    def __init__(
        self,
        pieces: Iterable[bytes],
        special: Sequence[str] = (),
        tools: str | None = None,
        think: tuple[str, str] | None = None,
        structural: tuple[str, ...] = (),
        response_format: dict[str, Any] | None = None,
    ) -> None:
        words = ["".join(_LETTERS[byte] for byte in piece) for piece in dict.fromkeys(pieces)]
        self.backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "?"))
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens([AddedToken(token, special=True) for token in special])
        self._tokenizer = SimpleNamespace(backend_tokenizer=self.backend)
        self._special = set(special)
        self.has_thinking = think is not None
        self.think_start, self.think_end = think or (None, None)
        self.has_tool_calling = tools is not None
        parser = importlib.import_module(f"mlx_lm.tool_parsers.{tools}") if tools else None
        self.tool_call_start = parser and parser.tool_call_start
        self.tool_call_end = parser and parser.tool_call_end
        self.tool_parser = parser and parser.parse_tool_call
        self.structural_markers = structural
        response_format = response_format or {}
        self.response_transitions = response_format.get("transitions", {})
        self.response_initial_state = response_format.get("initial_state")

    def ids(self, pieces: Iterable[bytes]) -> list[int]:
        """The tokens that these pieces are."""
        return [self._id(piece) for piece in pieces]

    def _id(self, piece: bytes) -> int:
        special = piece.decode(errors="replace")
        word = special if special in self._special else "".join(_LETTERS[byte] for byte in piece)
        token = self.backend.token_to_id(word)
        assert token is not None, piece
        return token


@attrs.define
class Heard:
    """What a caller puts together from a row's pieces."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = attrs.Factory(list)
    """Each with its name and its arguments."""
    ids: list[str] = attrs.field(factory=list, eq=False)
    order: list[str] = attrs.Factory(list)
    called: bool = False
    stop: str | None = None

    def take(self, piece: Piece) -> None:
        assert piece.text or piece.name
        if not self.order or self.order[-1] != piece.kind:
            self.order.append(piece.kind)
        match piece.kind:
            case "text":
                self.text += piece.text
            case "reasoning":
                self.reasoning += piece.text
            case "call":
                if piece.name:
                    assert piece.call == len(self.calls) and piece.id
                    self.calls.append((piece.name, ""))
                    self.ids.append(piece.id)
                assert piece.call == len(self.calls) - 1
                name, arguments = self.calls[-1]
                self.calls[-1] = name, arguments + piece.text


def hear(
    toy: Toy, pieces: Sequence[bytes], *, cut: bool = False, at_once: bool = False, **options: Any
) -> Heard:
    """Drive the pipeline token by token, or with all tokens at once."""
    output = Output(Markup(toy), **{"begins": "normal", **options})
    heard = Heard()
    tokens = toy.ids(pieces)
    used = 0
    for part in [tokens] if at_once else [[token] for token in tokens]:
        told, count = output.push(part)
        used += count
        assert all(0 < piece.used <= count for piece in told)
        for piece in told:
            heard.take(piece)
        if output.ended:
            break
    for piece in output.finish(cut=cut):
        heard.take(piece)
    assert output.ended or used == len(tokens)
    heard.called, heard.stop = output.called, output.stop
    return heard
