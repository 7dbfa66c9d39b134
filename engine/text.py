"""From tokens to text: whole characters, and strings that are searched for in text that still grows.

The tokenizers library's DecodeStream rather than mlx-lm's streaming detokenizers: those are quadratic
in the length of a line for tokenizers they do not know, drop a leading space, and print special
tokens. Strings are searched for in text by mlx-lm's TextStateMachine: as token sequences they would
miss every other way to spell them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mlx_lm.generate import TextStateMachine
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_LONGEST_WAIT = 8  # tokens without text; a character has four bytes, so four tokens, at most
_TAIL = 4  # prompt tokens that a continuation's decoder is shown


class Strings:
    """Strings that one may search for. Immutable: many searches share one.

    The machine ends in a state of its own for each string: mlx-lm's server lets it go on in the state it was
    in, which neither says which string was found nor ends a text.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        edges = [(string, ("found", string)) for string in dict.fromkeys(strings)]
        found: dict[Any, list[Any]] = {state: [] for _, state in edges}
        self._machine = TextStateMachine({"normal": edges, **found}) if edges else None

    def search(self) -> "Search":
        """A search at the beginning of a text."""
        return Search(self._machine)


class Search:
    """Looks for the first string to be completed; of those that end together, the longest."""

    def __init__(self, machine: TextStateMachine | None) -> None:
        self._machine = machine
        self._state = machine and machine.make_state()

    def push(self, text: str) -> tuple[str, str | None, str]:
        """More text: what is certainly before any string, the string found, and the text after it.

        A search that has found its string is over.
        """
        if self._machine is None:
            return text, None, ""
        self._state, segments = TextStateMachine.split(self._state, text)
        if len(segments) == 1:
            return segments[0][1], None, ""
        (_, before), ((_, found), rest) = segments
        return before, found, rest

    @property
    def waiting(self) -> int:
        """How many letters are held back as the possible beginning of a string."""
        return 0 if self._state is None else len(self._state[-1])

    def flush(self) -> str:
        """The text held back as the possible beginning of a string. The search goes on behind it."""
        if self._machine is None:
            return ""
        _, held, _ = TextStateMachine.flush(self._state)
        self._state = self._machine.make_state()
        return str(held)


def decoder(tokenizer: Any, after: Sequence[int] = ()) -> "FastDecoder | PlainDecoder":
    """One row's decoder.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
        after: token ids that the text continues, so that its first space is kept; empty for a
            chat's reply, which begins anew.
    """
    backend = getattr(tokenizer._tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return FastDecoder(backend, after)
    return PlainDecoder(tokenizer)


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """The special tokens with their text. As text they are part of a model's markers, or nothing."""
    backend = getattr(tokenizer._tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        added = backend.get_added_tokens_decoder()
        return {number: token.content for number, token in added.items() if token.special}
    return {number: str(tokenizer.decode([number])) for number in tokenizer.all_special_ids}


class FastDecoder:
    """Incremental decoding by the tokenizers library, well under a microsecond a token."""

    def __init__(self, backend: Tokenizer, after: Sequence[int]) -> None:
        self._backend = backend
        tail = list(after[-_TAIL:])
        if backend.decode(tail).endswith("\ufffd"):
            tail = []  # it ends within a character, which would be told again
        self._stream = DecodeStream(ids=tail, skip_special_tokens=True)
        self._held: list[int] = []  # tokens since the stream's last text
        self._early = ""  # what was told of theirs
        self._waited = 0  # tokens without text

    def step(self, token: int) -> str:
        """A token's text: whole characters, empty while one is cut and for a special token."""
        piece = self._stream.step(self._backend, token)
        if piece is not None:
            text = piece[len(self._early) :]
            self._begin()
            return text
        self._held.append(token)
        self._waited += 1
        text = self._backend.decode(self._held, skip_special_tokens=True)
        if self._waited == _LONGEST_WAIT:  # they are bytes of no character
            text = text[len(self._early) :]
            self._begin()
            self._stream = DecodeStream(skip_special_tokens=True)
            return text
        # Tokens may end within a character one after the other, and the stream gives nothing all the while.
        text = text.rstrip("\ufffd")[len(self._early) :]
        if text:
            self._early += text
            self._waited = 0
        return text

    def _begin(self) -> None:
        self._held.clear()
        self._early, self._waited = "", 0


class PlainDecoder:
    """mlx-lm's streaming detokenizer, for tokenizers that are not of the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._detokenizer = tokenizer.detokenizer
        self._special = frozenset(tokenizer.all_special_ids)

    def step(self, token: int) -> str:
        """As FastDecoder's."""
        if token in self._special:
            return ""
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)
