"""Log-probabilities of a choice in OpenAI's shapes, as they come and altogether.

https://platform.openai.com/docs/api-reference/chat/object (choices.logprobs), and .../completions/object
"""

import codecs
from collections.abc import Sequence
from typing import Any

from motet import Likely, Logprob


class ChatLogprobs:
    """A chat's: of the tokens of its content."""

    def __init__(self) -> None:
        self._content: list[dict[str, Any]] = []

    @property
    def whole(self) -> dict[str, Any] | None:
        """All of them; none if there were none."""
        return _chat(self._content) if self._content else None

    def more(self, text: str, logprobs: Sequence[Logprob]) -> dict[str, Any] | None:
        """Those that came with more text."""
        content = [_entry(one) for one in logprobs]
        self._content += content
        return _chat(content) if content else None


def _chat(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "refusal": None}


def _entry(one: Logprob) -> dict[str, Any]:
    return _token(one.chosen) | {"top_logprobs": [_token(likely) for likely in one.top]}


def _token(likely: Likely) -> dict[str, Any]:
    return {"token": likely.token, "logprob": likely.logprob, "bytes": list(likely.data)}


class TextLogprobs:
    """A text completion's. ``text_offset`` counts the letters of the completion before a token."""

    def __init__(self) -> None:
        self._told = 0  # letters
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._all: dict[str, list[Any]] = {}

    @property
    def whole(self) -> dict[str, Any] | None:
        """All of them; none if there were none."""
        return self._all or None

    def more(self, text: str, logprobs: Sequence[Logprob]) -> dict[str, Any] | None:
        """Those that came with more text, with whose beginning the first token's begins."""
        begins, self._told = self._told, self._told + len(text)
        if not logprobs:
            return None
        now: dict[str, list[Any]] = {
            "tokens": [_written(one.chosen) for one in logprobs],
            "token_logprobs": [one.chosen.logprob for one in logprobs],
            # As in OpenAI's API with the drawn token, so there may be one more than asked for.
            "top_logprobs": [_likeliest(one) for one in logprobs],
            "text_offset": self._offsets(begins, logprobs),
        }
        for field, values in now.items():
            self._all.setdefault(field, []).extend(values)
        return now

    def _offsets(self, begins: int, logprobs: Sequence[Logprob]) -> list[int]:
        """Where each token begins, or the character that it is part of."""
        offsets = []
        for one in logprobs:
            offsets.append(begins)
            begins += len(self._decoder.decode(one.chosen.data))
        return offsets


def _likeliest(one: Logprob) -> dict[str, float]:
    return {_written(likely): likely.logprob for likely in (*one.top, one.chosen)}


def _written(likely: Likely) -> str:
    """A token's text; its bytes if it is part of a character, for several such have the same text."""
    try:
        return likely.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in likely.data)
