"""Whose prompts are read next, and how far: the cohort's one decision.

Prompts of like length form a *gang*: they are read so that they end together and their first tokens go
through the model as one batch. That reads the weights once for all of them, and decoding does not begin with
a few rows while others are still read. Unlike prompts are brought level first, the longest reading ahead.
Where the model can read unlike parts in one forward, padded on the right, that takes few forwards; where it
cannot, one for each length. Which is quicker depends on what a forward costs beside what a token costs.

Others wait, the shortest first: a short prompt never waits for a much longer one to end. Every eighth turn
goes to the one that has waited longest, so that none waits for ever.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from motet.actors.chunks import next_chunk

OLDEST_EVERY = 8
LIKE = 3
"""How many times longer than the shortest a prompt of its gang may be."""
GANG_TOKENS = 2048
"""Tokens that a gang has left at most; its first prompt always enters."""
FEWEST = 8
"""Tokens of each prompt in a chunk, or all that it has, at least: no more prompts share it than have room."""


class Reader(Protocol):
    """A prompt being read."""

    @property
    def left(self) -> int:
        """Tokens still to read, the last one among them."""

    @property
    def last_turn(self) -> int:
        """The turn in which it was read last."""


R = TypeVar("R", bound=Reader)


def next_gang(ready: Sequence[R], *, oldest: bool, forward: float) -> list[R]:
    """Whose turn it is: the shortest prompt and those like it.

    Args:
        ready: the prompts, at least one.
        oldest: give the turn to who has waited longest, if any wait.
        forward: what a forward costs, in tokens: so much longer a prompt is still alike.
    """
    gang = _gang(ready, forward)
    waiting = [reader for reader in ready if reader not in gang]
    if oldest and waiting:
        return [min(waiting, key=lambda reader: reader.last_turn)]
    return gang


def share(gang: Sequence[R], allowed: int, *, forward: float, padded: bool) -> list[tuple[R, int]]:
    """Who of a gang reads next, and how many tokens each in the chunk's forward.

    The last token of a prompt that ends comes behind it.

    Args:
        gang: the prompts, at least one.
        allowed: tokens of a chunk, all prompts and their padding together.
        forward: what a forward costs, in tokens.
        padded: whether a chunk's parts may be unlike.
    """
    if len(gang) == 1:
        return [(gang[0], min(next_chunk(gang[0].left, allowed), gang[0].left - 1))]
    by_length = sorted(gang, key=lambda reader: -reader.left)
    most = max(1, allowed // min(FEWEST, max(by_length[0].left - 1, 1)))
    if not padded:
        return _alike(by_length, allowed, most)
    shares = [_down_to(by_length[:most], level) for level in _levels(by_length, allowed, most)]
    fitting = [share for share in shares if _cost(share) <= max(allowed, FEWEST)]
    return max(fitting, key=lambda share: sum(count for _, count in share) / (forward + _cost(share)))


def _alike(by_length: Sequence[R], allowed: int, most: int) -> list[tuple[R, int]]:
    """The longest, down to the next of them at most, as many tokens each."""
    level = by_length[0].left
    longest = [reader for reader in by_length if reader.left == level][:most]
    each = max(allowed // len(longest), FEWEST)
    below = [reader.left for reader in by_length if reader.left < level]
    if below:
        ahead = level - below[0]
        each = min(each, ahead if ahead > 1 else FEWEST)  # one token would be a chunk of its own
    count = _without_a_lone_token(level - 1, each)
    return [(reader, count) for reader in longest]


def _levels(by_length: Sequence[Reader], allowed: int, most: int) -> list[int]:
    """Down to where they may be read: each other's length, the end, and what a chunk has room for."""
    top = by_length[0].left
    body = top - 1
    levels = {reader.left for reader in by_length} | {1}
    levels |= {top - min(max(allowed // count, FEWEST), body) for count in range(1, most + 1)}
    # A level of 2 would leave one token for a chunk of its own.
    return sorted({level + 1 if level == 2 < body else level for level in levels if level < top} or {1})


def _down_to(by_length: Sequence[R], level: int) -> list[tuple[R, int]]:
    """All that are above the level; at the end all, those too that have but their last token left.

    But for a width of one token: mlx-lm's windows take no padding there.
    """
    ending = level == 1 and by_length[0].left != 2
    return [(reader, reader.left - level) for reader in by_length if reader.left > level or ending]


def _cost(share: Sequence[tuple[R, int]]) -> int:
    """Tokens of the chunk, padding included."""
    return len(share) * max((count for _, count in share), default=0)


def _gang(ready: Sequence[R], forward: float) -> list[R]:
    """The shortest and those like it."""
    by_length = sorted(ready, key=lambda reader: reader.left)
    shortest = by_length[0].left
    longest = max(LIKE * shortest, shortest + forward)
    gang: list[R] = []
    tokens = 0
    for reader in by_length:
        tokens += reader.left
        if gang and (reader.left > longest or tokens > GANG_TOKENS):
            break
        gang.append(reader)
    return gang


def _without_a_lone_token(body: int, each: int) -> int:
    """About ``each`` tokens of ``body``, neither one alone nor leaving one: so three are never split."""
    if body <= max(each, 3):
        return body
    return each if body - each > 1 else each - 1
