"""To the caller: the events of its stream. ``Finished`` or ``Failed`` is always the last of a row.

A stream that ends without one means that the engine died.
"""

from types import TracebackType
from typing import Literal, Protocol, Self

import attrs


@attrs.frozen
class Accepted:
    """The row is queued."""

    index: int


@attrs.frozen
class Rejected:
    """The row was not taken."""

    index: int
    code: Literal["busy", "draining"]


@attrs.frozen
class Likely:
    """A token as text and bytes (which may be part of a character), and its log-probability."""

    token: str
    data: bytes
    logprob: float


@attrs.frozen
class Logprob:
    """A generated token's log-probability, and the likeliest tokens in its place, likeliest first."""

    chosen: Likely
    top: tuple[Likely, ...]


@attrs.frozen
class Text:
    """New text of a row, never part of a character, and the count of tokens read for it so far.

    With ``logprobs``, if the row asks for them, the tokens whose text begins to be told with it. Only at the
    end may there be some without text: of tokens that made no whole character.
    """

    index: int
    text: str
    completion_tokens: int
    logprobs: tuple[Logprob, ...] = ()


@attrs.frozen
class Reasoning:
    """New text of a row's thinking: as Text, but not part of the answer."""

    index: int
    text: str
    completion_tokens: int
    logprobs: tuple[Logprob, ...] = ()


@attrs.frozen
class ToolCall:
    """A tool call, or more of one: its ``arguments`` are JSON text, which grows by each event's.

    A call's first event alone has its ``id`` and ``name``.
    """

    index: int
    call: int
    """Which of the row's calls, from 0."""
    arguments: str
    id: str = ""
    name: str = ""


@attrs.frozen
class Usage:
    """Exact token counts; ``cached`` prompt tokens were taken from the prompt cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    """Of the completion's tokens those that were thinking."""


@attrs.frozen
class Finished:
    """The row's end: 'stop' (an end token or a stop string), 'length', or 'tool_calls'."""

    index: int
    reason: Literal["stop", "length", "tool_calls"]
    usage: Usage
    stop: str | None = None
    """The stop string that ended it, if one did."""


@attrs.frozen
class Failed:
    """The row could not go on."""

    index: int
    code: str
    message: str


ToCaller = Accepted | Rejected | Text | Reasoning | ToolCall | Finished | Failed
"""The channel is unbounded in form; its bound is the letters of the row's text and three more."""


class Outgoing(Protocol):
    """Where a row's emitter speaks to its caller; leaving the block says that it will not any more."""

    def send_nowait(self, value: ToCaller, /) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> object: ...
