"""Whose prompts are read next, and how far."""

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from motet.actors.turns import FEWEST, GANG_TOKENS, LIKE, next_gang, share


@attrs.define(eq=False)
class Prompt:
    left: int
    last_turn: int = 0


def lefts(prompts: list[Prompt]) -> list[int]:
    return sorted(prompt.left for prompt in prompts)


def test_a_short_prompt_goes_before_long_ones() -> None:
    assert lefts(next_gang([Prompt(1500), Prompt(20), Prompt(3000)], oldest=False, forward=1)) == [20]


def test_prompts_of_like_length_are_a_gang() -> None:
    prompts = [Prompt(100), Prompt(100 * LIKE), Prompt(100 * LIKE + 1), Prompt(150)]
    assert lefts(next_gang(prompts, oldest=False, forward=1)) == [100, 150, 100 * LIKE]


def test_where_a_forward_is_dear_longer_prompts_are_alike() -> None:
    prompts = [Prompt(20), Prompt(100), Prompt(121)]
    assert lefts(next_gang(prompts, oldest=False, forward=100)) == [20, 100]


def test_a_gang_has_a_bound_but_its_first_always_enters() -> None:
    assert lefts(next_gang([Prompt(5000), Prompt(6000)], oldest=False, forward=1)) == [5000]
    many = [Prompt(GANG_TOKENS // 4) for _ in range(9)]
    assert len(next_gang(many, oldest=False, forward=1)) == 4


def test_every_so_often_the_one_that_waited_longest_reads() -> None:
    waiting = [Prompt(20, 9), Prompt(3000, 4), Prompt(2000, 7)]
    assert lefts(next_gang(waiting, oldest=True, forward=1)) == [3000]
    assert lefts(next_gang([Prompt(20, 9), Prompt(25, 1)], oldest=True, forward=1)) == [
        20,
        25,
    ]  # nobody waits


def read_to_the_end(
    lengths: list[int], allowed: int, *, padded: bool, forward: float = 30
) -> tuple[list[list[int]], int]:
    """Share a gang's chunks until all have ended; who ended with each chunk, and how many chunks it took."""
    gang = [Prompt(length) for length in lengths]
    ended = []
    for chunks in range(1, 10_000):
        shares = share(gang, allowed, forward=forward, padded=padded)
        counts = [count for _, count in shares]
        assert shares and all(0 <= count < prompt.left for prompt, count in shares)
        assert padded or len(set(counts)) == 1
        assert max(counts) != 1 or set(counts) == {1}  # a window takes no padding in a chunk of one token
        assert max(counts) * len(counts) <= max(allowed, FEWEST * len(counts), 17)
        done = [prompt for prompt, count in shares if prompt.left == count + 1]
        for prompt, count in shares:
            prompt.left -= count
        if done:
            ended.append(sorted(id(prompt) for prompt in done))
        gang = [prompt for prompt in gang if prompt not in done]
        if not gang:
            return ended, chunks
    raise AssertionError("it does not end")


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("allowed", [16, 48, 200, 2048])
@pytest.mark.parametrize("lengths", [[100, 100, 100], [120, 90, 100], [80, 200, 101, 150, 100, 100]])
def test_a_gang_ends_together(lengths: list[int], allowed: int, padded: bool) -> None:
    """With room for all in a chunk, everyone's first token comes from one forward."""
    ended, _ = read_to_the_end(lengths, allowed, padded=padded)
    if allowed >= FEWEST * len(lengths):
        assert [len(group) for group in ended] == [len(lengths)]


def test_unlike_prompts_are_read_in_one_padded_forward_where_a_forward_is_dear() -> None:
    lengths = [40 + 12 * i for i in range(8)]
    assert read_to_the_end(lengths, 2048, padded=True, forward=500)[1] == 1
    assert read_to_the_end(lengths, 2048, padded=False)[1] == 8


def test_where_a_token_is_dear_the_longest_reads_ahead_without_padding() -> None:
    shares = share([Prompt(300), Prompt(100)], 2048, forward=1, padded=True)
    assert [(prompt.left, count) for prompt, count in shares] == [(300, 200)]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=9), st.integers(FEWEST, 600), st.booleans())
def test_all_prompts_are_read_to_their_ends(lengths: list[int], allowed: int, padded: bool) -> None:
    ended, _ = read_to_the_end(lengths, allowed, padded=padded)
    assert sum(map(len, ended)) == len(lengths)


@given(st.lists(st.integers(2, 400), min_size=1, max_size=9), st.integers(FEWEST, 600))
@example([2, 4], 16)
def test_no_chunk_is_a_single_token_but_at_a_prompts_end(lengths: list[int], allowed: int) -> None:
    gang = [Prompt(length) for length in lengths]
    while gang:
        shares = share(gang, allowed, forward=30, padded=False)
        for prompt, count in shares:
            assert count != 1 or prompt.left == 2
            prompt.left -= count
        gang = [prompt for prompt in gang if prompt.left > 1]


def test_prompts_with_few_tokens_left_share_a_chunk_as_far_as_it_goes() -> None:
    short = [Prompt(4) for _ in range(7)]
    assert [count for _, count in share(short, 16, forward=10, padded=True)] == [3] * 5


def test_level_prompts_stay_level_rather_than_read_more_tokens_each() -> None:
    level = [Prompt(21) for _ in range(8)]
    assert [count for _, count in share(level, 119, forward=10, padded=True)] == [14] * 8
