"""To a request's emitter: what has become of its row. One emitter a request.

Sent by admission (Accepted, Rejected, Failed), prefill (Prepared, Failed) and decode (Tokens,
Failed). ``Tokens`` with a finish, ``Rejected`` and ``Failed`` are terminal; nothing follows them.
Capacity: a row cannot make more messages than its token limit and the four others.
"""

from typing import Literal

import attrs

Finish = Literal["stop", "length"]


@attrs.frozen
class Accepted:
    """The request is queued."""


@attrs.frozen
class Rejected:
    """The request was not taken: ``code`` is 'busy' or 'draining'."""

    code: Literal["busy", "draining"]


@attrs.frozen
class Prepared:
    """The prompt has been read; ``cached`` of its tokens came from the prompt cache."""

    cached: int


@attrs.frozen
class TokenLogprob:
    """A drawn token's log-probability, and the likeliest tokens with theirs, likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@attrs.frozen
class Tokens:
    """Tokens in order, the last message with a ``finish``; a stop token is included."""

    tokens: tuple[int, ...]
    finish: Finish | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, if the row asks for them."""


@attrs.frozen
class Failed:
    """The row cannot go on. ``code`` names the cause for machines, ``message`` for people."""

    code: str
    message: str


ToEmitter = Accepted | Rejected | Prepared | Tokens | Failed


def capacity(limit: int) -> int:
    """Messages that a row of ``limit`` tokens can send at most."""
    return limit + 4
