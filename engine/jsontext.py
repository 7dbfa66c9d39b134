"""A JSON object as it grows: what of a text belongs to it, checked letter by letter.

No library parses JSON by pieces at a cost that does not grow with what came before.
"""

import re
from typing import Literal

_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_HEX = frozenset("0123456789abcdefABCDEF")


class GrowingObject:
    """Reads one object, from its opening brace to the closing one.

    Control characters within strings are escaped: models write line breaks there, which JSON forbids.
    """

    def __init__(self) -> None:
        self.state: Literal["open", "done", "broken"] = "open"
        self._open: list[str] = []
        self._expects = "object"
        self._word = ""

    def push(self, text: str) -> tuple[str, str]:
        """More text: what of it belongs to the object, and the rest if the object has ended or is broken."""
        taken: list[str] = []
        for position, letter in enumerate(text):
            if letter < " " and self._expects in {"string", "key string"}:
                taken.append(f"\\u{ord(letter):04x}")
                continue
            if not self._accepts(letter):
                self.state = "broken"
                return "".join(taken), text[position:]
            taken.append(letter)
            if self._expects == "nothing":
                self.state = "done"
                return "".join(taken), text[position + 1 :]
        return "".join(taken), ""

    def _accepts(self, letter: str) -> bool:
        match self._expects:
            case "string" | "key string":
                return self._in_string(letter)
            case "escape" | "key escape":
                return self._escaped(letter)
            case "hex" | "key hex":
                return self._hex(letter)
            case "literal":
                return self._in_literal(letter)
            case "number":
                if letter in "0123456789+-.eE":
                    self._word += letter
                    return True
                if not _NUMBER.fullmatch(self._word):
                    return False
                self._expects = "comma"
        return letter in _SPACE or self._between(letter)

    def _between(self, letter: str) -> bool:
        """A letter that is in no word."""
        expects = self._expects
        if expects in {"object", "value", "first value"} and letter in '{["-0123456789tfn':
            return self._begin(letter)
        if letter == '"' and expects in {"key", "first key"}:
            self._expects = "key string"
        elif letter == ":" and expects == "colon":
            self._expects = "value"
        elif letter == "," and expects == "comma":
            self._expects = "key" if self._open[-1] == "}" else "value"
        elif letter in "}]" and expects in {"comma", "first key" if letter == "}" else "first value"}:
            return self._close(letter)
        else:
            return False
        return True

    def _begin(self, letter: str) -> bool:
        if self._expects == "object" and letter != "{":
            return False
        if letter in "{[":
            self._open.append("}" if letter == "{" else "]")
            self._expects = "first key" if letter == "{" else "first value"
        elif letter == '"':
            self._expects = "string"
        elif letter in _LITERALS:
            self._word, self._expects = _LITERALS[letter][1:], "literal"
        else:
            self._word, self._expects = letter, "number"
        return True

    def _close(self, letter: str) -> bool:
        if self._open.pop() != letter:
            return False
        self._expects = "comma" if self._open else "nothing"
        return True

    def _in_string(self, letter: str) -> bool:
        key = self._expects == "key string"
        if letter == '"':
            self._expects = "colon" if key else "comma"
        elif letter == "\\":
            self._expects = "key escape" if key else "escape"
        return letter >= " "

    def _escaped(self, letter: str) -> bool:
        key = "key " if self._expects == "key escape" else ""
        self._word = ""
        self._expects = key + ("hex" if letter == "u" else "string")
        return letter in '"\\/bfnrtu'

    def _hex(self, letter: str) -> bool:
        self._word += letter
        if len(self._word) == 4:
            self._expects = "key string" if self._expects == "key hex" else "string"
        return letter in _HEX

    def _in_literal(self, letter: str) -> bool:
        if letter != self._word[0]:
            return False
        self._word = self._word[1:]
        if not self._word:
            self._expects = "comma"
        return True
