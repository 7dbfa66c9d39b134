"""Which tokens' text has been told, and as what: each has its log-probability told with its text.

Text is counted in letters from the reply's beginning. A token that gives none, for it ends within a
character, stands where that character will.
"""

from collections import deque
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["text", "reasoning"]
"""The answer, or thinking. What is neither (markers, tool calls, special tokens) is not told as text."""


class Told:
    """The tokens whose text waits, and the parts that the text belongs to."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int]] = deque()  # where each begins and ends; nowhere: (-1, -1)
        self._parts: deque[tuple[int, int, Part]] = deque()
        self._length = 0

    def token(self, text: str, *, special: bool) -> None:
        """One more token, and its text as far as it goes; a special one is never text."""
        start, self._length = self._length, self._length + len(text)
        self._tokens.append((-1, -1) if special else (start, max(self._length, start + 1)))

    def part(self, start: int, end: int, part: Part) -> None:
        """The letters from ``start`` to ``end`` belong to a part that is told."""
        if self._parts and self._parts[-1][1:] == (start, part):
            start, _, _ = self._parts.pop()
        if start < end:
            self._parts.append((start, end, part))

    def drop(self, letters: int) -> None:
        """The last letters of the last parts will never be told."""
        while letters and self._parts:
            start, end, part = self._parts.pop()
            dropped = min(letters, end - start)
            letters -= dropped
            self.part(start, end - dropped, part)

    def until(self, position: int) -> list[Part | None]:
        """What becomes of the next tokens, up to the first of which that is not known yet.

        Args:
            position: the letters before it are told, or never will be.
        """
        known: list[Part | None] = []
        while self._tokens:
            start, end = self._tokens[0]
            while self._parts and self._parts[0][1] <= start:
                self._parts.popleft()
            part = self._parts[0] if self._parts and self._parts[0][0] < end else None
            if part is not None and max(part[0], start) < position:
                known.append(part[2])  # told, if only in part
            elif end <= position:
                known.append(None)
            else:
                break
            self._tokens.popleft()
        return known

    def rest(self, part: Part | None) -> list[Part | None]:
        """What becomes of the tokens that are left when the text ends: those of half a character."""
        known = self.until(self._length)
        known += [part] * len(self._tokens)
        self._tokens.clear()
        return known
