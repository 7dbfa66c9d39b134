"""From a row's tokens to what its caller is told: answer, thinking and tool calls, in one pass.

Tokens become text (text.py); the model's markers part the text (reasoning.py); calls are read (toolcalls.py).

What holds, however the text is cut into tokens:

- No character is split, and special tokens are not told. In a call that proves to be none they are: such text
  is told as the model wrote it, markers and all, for only so can its reader see what it was meant to be.
- White space between two parts belongs to neither. Of a reply of one part nothing is lost.
- Stop strings apply to the answer, as OpenAI's do: not to thinking and not to calls. Text that proves to be
  no call is answer. One that begins before another part and ends behind it does not count.
- A marker within a call's arguments is text, where the arguments are told as they grow.
- Text that may yet be a marker, a stop string or white space between parts waits until that is known.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from motet.engine.pieces import Piece, Pieces
from motet.engine.reasoning import NORMAL, REASONING, TOOL, TOOL_IN_REASONING, Markers, Markup
from motet.engine.text import decoder
from motet.engine.told import Part, Told
from motet.engine.toolcalls import Call, Malformed, Section, Tools


class Output:
    """One row's output as it grows.

    Args:
        markup: the model's markers.
        stops: strings that end the answer; it is cut before the first of them to be completed.
        after: token ids that the text continues, if it is no chat's reply.
        begins: the part that a chat's reply begins in, by ``Markup.begins``; None for other text, which has
            no parts.
        tools: what a chat's reply may call, in OpenAI's form.
        parallel: false if the reply ends with its first call.
    """

    def __init__(
        self,
        markup: Markup,
        stops: Sequence[str] = (),
        after: Sequence[int] = (),
        *,
        begins: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        parallel: bool = True,
    ) -> None:
        self._decoder = decoder(markup.tokenizer, after)
        self._markers = _markers(markup, tools) if begins is not None else Markers({})
        self._special = {} if self._markers.none else markup.special
        self._never_text = markup.special
        self._tools = Tools(markup.form, tools)
        self._parallel = parallel
        self._pieces = Pieces(stops, parted=not self._markers.none, fresh=begins not in {None, NORMAL})
        self._shown = _Shown()
        self._told = Told()
        self._section: Section | None = None
        self._section_start = 0  # in letters
        self._enter(begins or NORMAL)
        self._finished = False
        self.called = False
        """Whether a whole call has been told."""
        self.ended = False
        """Whether a stop string has ended it, or the only call. Nothing is told after that."""
        self.reasoning_tokens = 0
        self.faults: list[str] = []
        """Why text that began as a call is none."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._pieces.stop

    @property
    def pending(self) -> int:
        """Letters of tool calls that are still to be parsed."""
        return 0 if self._section is None else self._section.pending

    def push(self, tokens: Iterable[int]) -> tuple[list[Piece], int]:
        """Take tokens; return what is now certain, and how many tokens were used.

        Fewer than all are used only when the text has ``ended``.
        """
        self._pieces.used = 0
        for token in tokens:
            self._pieces.used += 1
            self.reasoning_tokens += self._part == REASONING
            special = self._special.get(token, "")
            text = special or self._decoder.step(token)
            self._shown.add(text, hidden=bool(special))
            self._told.token(text, special=token in self._never_text)
            self._read(text)
            if self.ended:
                break
        return self._pieces.take(), self._pieces.used

    def told(self) -> list[Part | None]:
        """What has become of the next tokens, as far as that is known: told as text, as thinking, or not.

        Told with what ``push`` or ``finish`` has just returned, if only the first of its text.
        """
        if self._finished and not self.ended:
            return self._told.rest(self._kind)
        certain = self._shown.taken if self._section is None else self._section_start
        return self._told.until(certain - self._pieces.waiting)

    @property
    def _kind(self) -> Part | None:
        if self._section is not None:
            return None
        return {NORMAL: "text", REASONING: "reasoning"}.get(self._part)  # type: ignore[return-value]

    def finish(self, *, cut: bool) -> list[Piece]:
        """What was held back, when no more comes.

        Args:
            cut: whether a limit cut the text. Then a call without its end is none.
        """
        if not self.ended:
            self._tell(self._search.flush())
        if self._section is not None and not self.ended:
            self._leave(self._section, "", whole=not cut or not self._markers.edges[TOOL])
        if not self.ended:
            self._pieces.finish()
        self._finished = True
        return self._pieces.take()

    def _enter(self, part: str) -> None:
        self._part = part
        self._search = self._markers.search(part)

    def _read(self, text: str) -> None:
        while text and not self.ended:
            section = self._section
            if section is not None and section.inside:
                text = self._argue(section, text)
                continue
            before, marker, text = self._search.push(text)
            self._tell(before)
            if section is not None and section.inside:
                # Arguments began before the marker: it is none, nor is what might have become one.
                text = (marker or self._search.flush()) + text
            elif marker is not None and not self.ended:
                self._shown.take(marker)
                self._cross(marker)

    def _argue(self, section: Section, text: str) -> str:
        """Text within a call's arguments; returns what is behind them."""
        calls, rest = section.push(text)
        self._shown.take(text[: len(text) - len(rest)])
        self._call(calls, section)
        if not section.inside:
            self._enter(self._part)
        return rest

    def _tell(self, text: str) -> None:
        """Text of the part that the row is in, with no marker in it."""
        start = self._shown.taken
        shown = self._shown.take(text)
        if self._kind is not None:
            if self._pieces.fresh:
                start += len(text) - len(text.lstrip())
            self._told.part(start, self._shown.taken, self._kind)
        if self._section is not None:
            self._call(self._section.push(text)[0], self._section)
        elif self._part == REASONING:
            self._pieces.reasoning(shown)
        elif self._part == NORMAL:  # others are headers
            self._answer(shown)

    def _answer(self, text: str) -> None:
        self._pieces.answer(text)
        self.ended = self._pieces.stop is not None

    def _cross(self, marker: str) -> None:
        """A marker leads the row from one part to another."""
        to = self._markers.edges[self._part][marker]
        if self._section is not None:
            self._leave(self._section, marker)
            return
        if to in {TOOL, TOOL_IN_REASONING}:
            self._section = Section(self._tools, marker)
            self._section_start = self._shown.taken - len(marker)
        elif to != self._part:
            self._told.drop(self._pieces.part_ends())
        self._enter(to)

    def _leave(self, section: Section, marker: str, *, whole: bool = True) -> None:
        """A section of calls is over, by a marker or by the text's end."""
        thinking = self._part == TOOL_IN_REASONING
        self._section = None
        self._enter(NORMAL)
        if thinking and marker and marker not in self._markers.edges[TOOL]:
            # The end of the thinking: it only spoke of calls.
            self.faults.append("the thinking ended within it")
            self._told.part(self._section_start, self._shown.taken - len(marker), "reasoning")
            self._pieces.reasoning(section.left(""))
            self._told.drop(self._pieces.part_ends())
            return
        try:
            calls = section.end(whole=whole)
        except Malformed as error:
            self.faults.append(str(error))
            left = section.left(marker)
            self._told.part(self._section_start, self._shown.taken, "reasoning" if thinking else "text")
            if thinking:
                self._pieces.reasoning(left)
                self._enter(REASONING)
            else:
                self._answer(left)
        else:
            self._call(calls, section)

    def _call(self, calls: Sequence[Call], section: Section) -> None:
        for call in calls:
            if call.name and self.called and not self._parallel:
                break
            self._told.drop(self._pieces.call(call))
            self.called = self.called or section.whole
        self.called = self.called or section.whole
        self.ended = self.ended or (self.called and not self._parallel)


def _markers(markup: Markup, tools: Sequence[Mapping[str, Any]]) -> Markers:
    return markup.with_tools if tools else markup.without_tools


class _Shown:
    """Which letters of a text are shown: those of special tokens are not."""

    def __init__(self) -> None:
        self._hidden: deque[tuple[int, int]] = deque()
        self._added = 0
        self.taken = 0

    def add(self, text: str, *, hidden: bool) -> None:
        """More text."""
        if hidden:
            self._hidden.append((self._added, self._added + len(text)))
        self._added += len(text)

    def take(self, text: str) -> str:
        """What is shown of the text's next letters."""
        start = self.taken
        self.taken = end = start + len(text)
        if not self._hidden or self._hidden[0][0] >= end:
            return text
        shown = []
        while self._hidden and self._hidden[0][0] < end:
            low, high = self._hidden.popleft()
            shown.append(text[: max(low - start, 0)])
            text, start = text[max(min(high, end) - start, 0) :], max(min(high, end), start)
            if high > end:
                self._hidden.appendleft((end, high))
                break
        return "".join([*shown, text])
