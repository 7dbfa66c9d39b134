"""To the caller: the events of its stream. ``Finished`` or ``Failed`` is always the last of a row.

A stream that ends without one means that the engine died.
"""

from typing import Literal

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
class Text:
    """New text of a row, never part of a character, and the count of tokens read for it so far."""

    index: int
    text: str
    completion_tokens: int


@attrs.frozen
class Usage:
    """Exact token counts; ``cached`` prompt tokens were taken from the prompt cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@attrs.frozen
class Finished:
    """The row's end: 'stop' (an end token or a stop string) or 'length'."""

    index: int
    reason: Literal["stop", "length"]
    usage: Usage


@attrs.frozen
class Failed:
    """The row could not go on."""

    index: int
    code: str
    message: str


ToCaller = Accepted | Rejected | Text | Finished | Failed
"""The channel is unbounded in form; its bound is the row's token limit and three more."""
