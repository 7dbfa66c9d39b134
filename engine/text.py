"""From tokens to text: whole characters, stop strings, nothing after an end.

The tokenizers library's DecodeStream rather than mlx-lm's streaming detokenizers: those are quadratic
in the length of a line for tokenizers they do not know, drop a leading space, and print special
tokens. Stop strings are matched on text by mlx-lm's TextStateMachine: as token sequences they would
miss every other way to spell them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mlx_lm.generate import TextStateMachine
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_LONGEST_WAIT = 8  # tokens without text; a character has four bytes, so four tokens, at most
_TAIL = 4  # prompt tokens that a continuation's decoder is shown


class TextStream:
    """One row's text as it grows.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
        stops: strings that end the text; it is cut before the first of them to be completed.
        after: token ids that the text continues, so that its first space is kept; empty for a
            chat's reply, which begins anew.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), after: Sequence[int] = ()) -> None:
        self._decoder = _decoder(tokenizer, after)
        self._stops = (
            TextStateMachine({"normal": [(stop, None) for stop in stops]}).make_state() if stops else None
        )
        self.stopped = False

    def push(self, tokens: Iterable[int]) -> tuple[str, int]:
        """Take tokens; return the text that is now certain, and how many tokens were used.

        Fewer than all are used only when a stop string ends the text (``stopped``).
        """
        text = []
        used = 0
        for token in tokens:
            used += 1
            piece = self._decoder.step(token)
            if piece:
                text.append(self._cut(piece))
            if self.stopped:
                break
        return "".join(text), used

    def finish(self) -> str:
        """The text held back as the possible start of a stop string, when no more comes."""
        if self._stops is None or self.stopped:
            return ""
        self._stops, held, _ = TextStateMachine.flush(self._stops)
        return str(held)

    def _cut(self, piece: str) -> str:
        if self._stops is None:
            return piece
        self._stops, segments = TextStateMachine.split(self._stops, piece)
        self.stopped = self._stops[0] is None
        return "".join(text for state, text in segments if state is not None)


def _decoder(tokenizer: Any, after: Sequence[int]) -> "_FastDecoder | _PlainDecoder":
    backend = getattr(tokenizer._tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return _FastDecoder(backend, after)
    return _PlainDecoder(tokenizer)


class _FastDecoder:
    """Incremental decoding by the tokenizers library, well under a microsecond a token."""

    def __init__(self, backend: Tokenizer, after: Sequence[int]) -> None:
        self._backend = backend
        tail = list(after[-_TAIL:])
        if backend.decode(tail).endswith("\ufffd"):
            tail = []  # it ends within a character, which would be told again
        self._stream = DecodeStream(ids=tail, skip_special_tokens=True)
        self._held: list[int] = []  # tokens since the last text

    def step(self, token: int) -> str | None:
        piece = self._stream.step(self._backend, token)
        if piece is not None:
            self._held.clear()
            return piece
        self._held.append(token)
        return self._give_up() if len(self._held) == _LONGEST_WAIT else None

    def _give_up(self) -> str:
        """The tokens held are bytes of no character: give them as U+FFFD, and begin anew."""
        text = self._backend.decode(self._held, skip_special_tokens=True)
        self._held.clear()
        self._stream = DecodeStream(skip_special_tokens=True)
        return text


class _PlainDecoder:
    """mlx-lm's streaming detokenizer, for tokenizers that are not of the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._detokenizer = tokenizer.detokenizer
        self._special = frozenset(tokenizer.all_special_ids)

    def step(self, token: int) -> str | None:
        if token in self._special:
            return None
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)
