"""What a caller is told of a row: pieces of its answer, its thinking and its calls, in order."""

from collections.abc import Sequence
from typing import Literal

import attrs

from motet.engine.text import Strings
from motet.engine.toolcalls import Call


@attrs.frozen
class Piece:
    """New text of the answer or of thinking; or a call or more of one, with its arguments as ``text``."""

    kind: Literal["text", "reasoning", "call"]
    text: str
    used: int
    """How many of the tokens that were just pushed had been used when this became certain."""
    call: int = -1
    """Which of the row's calls, from 0."""
    id: str = ""
    name: str = ""


class Pieces:
    """Collects pieces, without the white space between parts and without what is behind a stop string.

    Args:
        stops: strings that end the answer.
        parted: whether the text may have several parts; in one that has not, nothing waits.
        fresh: whether it begins with a part that some marker has opened.
    """

    def __init__(self, stops: Sequence[str], *, parted: bool, fresh: bool) -> None:
        self._search = Strings(stops).search()
        self._parted = parted
        self.fresh = fresh
        """Whether no more than white space has come of this part. It is not told."""
        self._kind: Literal["text", "reasoning"] = "text"
        self._space = ""  # behind what was told; it may turn out to stand between two parts
        self._pieces: list[Piece] = []
        self._calls = 0
        self._behind = 0  # letters of the stop string and behind it
        self.used = 0
        self.stop: str | None = None
        """The stop string that ended the answer: nothing more must be told."""

    @property
    def waiting(self) -> int:
        """How many of the letters that came have not been told."""
        return self._behind + self._search.waiting + len(self._space)

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def answer(self, text: str) -> None:
        """More of the answer."""
        before, self.stop, behind = self._search.push(self._without_first_space(text))
        self._say("text", before)
        if self.stop is not None:
            self._behind = len(self.stop) + len(behind)
            self._say_space()

    def reasoning(self, text: str) -> None:
        """More thinking."""
        self._say("reasoning", self._without_first_space(text))

    def call(self, call: Call) -> int:
        """A call, or more of the last one; returns as ``part_ends``."""
        dropped = 0
        if call.name:
            dropped = self.part_ends()
            self._calls += 1
        self._add(Piece("call", call.arguments, self.used, self._calls - 1, call.id, call.name))
        return dropped

    def part_ends(self) -> int:
        """What comes is of another part. A stop string that has only begun has not been said.

        Returns:
            How many letters of white space, the last that came, will never be told.
        """
        self._say("text", self._search.flush())
        dropped = len(self._space)
        self._space, self.fresh = "", True
        return dropped

    def finish(self) -> None:
        """Nothing more comes."""
        self._say("text", self._search.flush())
        self._say_space()

    def _without_first_space(self, text: str) -> str:
        if self.fresh:
            text = text.lstrip()
            self.fresh = not text
        return text

    def _say(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if not text:
            return
        self._kind = kind
        text = self._space + text
        told = text.rstrip() if self._parted else text
        self._space = text[len(told) :]
        if told:
            self._add(Piece(kind, told, self.used))

    def _say_space(self) -> None:
        if self._space:
            self._add(Piece(self._kind, self._space, self.used))
            self._space = ""

    def _add(self, piece: Piece) -> None:
        """One piece for what came together."""
        last = self._pieces[-1] if self._pieces else None
        if last is None or (last.kind, last.call) != (piece.kind, piece.call):
            self._pieces.append(piece)
        else:
            self._pieces[-1] = attrs.evolve(last, text=last.text + piece.text, used=piece.used)
