"""How long a prompt chunk may be: sizes, edges, and the estimate that follows what is measured."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.chunks import SIZES, ChunkSizer, next_chunk, next_edge

LONGEST_PROMPT = 300

# A device: what a forward costs, what each token adds, and how that grows with depth.
FORWARD = 0.02
TOKEN = 0.001
TARGET = 0.2


def true_time(tokens: int, depth: int) -> float:
    return FORWARD + tokens * TOKEN * (1 + depth / 2000)


def chunks_of(prompt: int, choose: Callable[[int, int], int]) -> Iterator[tuple[int, int, int]]:
    """The position, the length, and what is left with it, of each chunk of a prompt."""
    position = 0
    while position < prompt:
        count = choose(position, prompt - position)
        assert 1 <= count <= prompt - position
        yield position, count, prompt - position
        position += count


# --- sizes ------------------------------------------------------------------------------------


@given(
    token_seconds=st.floats(1e-7, 1.0),
    largest=st.integers(1, 5000),
    depth=st.integers(0, 40_000),
    seconds=st.floats(0.001, 10),
    observed=st.lists(
        st.tuples(st.sampled_from(SIZES), st.integers(0, 40_000), st.floats(0, 10)), max_size=9
    ),
)
def test_a_size_is_one_of_few_and_never_over_the_largest(
    token_seconds: float,
    largest: int,
    depth: int,
    seconds: float,
    observed: list[tuple[int, int, float]],
) -> None:
    sizer = ChunkSizer(FORWARD, token_seconds, largest)
    for tokens, at, took in observed:
        sizer.observe(tokens, at, took)
    size = sizer.size(depth, seconds)
    assert size <= largest
    assert size in SIZES or size == largest < min(SIZES)


def test_a_size_is_the_largest_that_fits_the_time() -> None:
    sizer = ChunkSizer(FORWARD, TOKEN, 2048)
    # 0.02 + 128 * 0.001 = 0.148, 0.02 + 192 * 0.001 = 0.212
    assert [sizer.size(0, seconds) for seconds in (0.147, 0.149, 0.211, 0.213)] == [96, 128, 128, 192]
    assert sizer.size(0, 100) == 2048
    assert sizer.size(0, 0.001) == 16  # less than a forward: what costs little beside it
    assert ChunkSizer(FORWARD, FORWARD, 2048).size(0, 0.001) == min(SIZES)
    assert ChunkSizer(FORWARD, TOKEN, 500).size(0, 100) == 384


# --- edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, *SIZES[:8]])
def test_chunks_cover_every_prompt_and_leave_no_token_alone_before_the_last(size: int) -> None:
    for prompt in range(1, LONGEST_PROMPT + 1):
        chunks = list(chunks_of(prompt, lambda _, left: next_chunk(left, size)))
        assert sum(count for _, count, _ in chunks) == prompt
        for _, count, left in chunks:
            last = count == left
            read = count - 1 if last else count  # the last token goes through the model alone
            # Small sizes are stretched by one, where a larger one would be shortened by one.
            assert read <= size + (size <= min(SIZES))
            if size > 1 and not last:
                assert read > 1
                assert left - count - 1 != 1, "a single token would be left to be read"


@pytest.mark.parametrize("step", [1, 2, 16, 48, 128, 2048])
def test_edges_are_at_multiples_of_the_step_and_cover_every_prompt(step: int) -> None:
    for prompt in range(1, LONGEST_PROMPT + 1):
        chunks = list(chunks_of(prompt, lambda position, left: next_edge(position, left, step)))
        assert sum(count for _, count, _ in chunks) == prompt
        edges = [position + count for position, count, _ in chunks]
        assert edges[:-1] == list(range(step, prompt - 1, step))


def test_an_edge_from_between_two_is_the_next_one() -> None:
    assert next_edge(10, 100, 16) == 6
    assert next_edge(10, 8, 16) == 6
    assert next_edge(10, 7, 16) == 7  # all but the last token end on it


@pytest.mark.parametrize("guess", [0.06, 0.2])
def test_where_shapes_are_planned_chunks_grow_to_what_they_really_take(guess: float) -> None:
    """A chunk of any length takes 0.1 s and a token next to nothing: few are not taken for slow ones."""
    sizer = ChunkSizer(0.005, 0.00003, 2048, guess)
    sizes = []
    for _ in range(20):
        sizes.append(sizer.size(0, TARGET))
        sizer.observe(256, 0, 0.105 + 256 * 0.00003)
    assert sizes[-1] == 2048
    for _ in range(20):
        sizer.observe(256, 0, 0.015)  # shapes that were seen before
    assert sizer.seconds(256, 0) < 0.03


# --- the estimate -----------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [0.4, 1, 4])
@pytest.mark.parametrize("seed", range(10))
def test_the_estimate_converges_under_noise(guess: float, seed: int) -> None:
    """Six prompts of 8000 tokens: after a few observations no chunk takes 1.6 times what it may."""
    draw = random.Random(seed)
    sizer = ChunkSizer(FORWARD, guess * TOKEN, 2048)
    seen = 0
    for _ in range(6):
        depth = 0
        while depth < 8000:
            tokens = sizer.size(depth, TARGET)
            took = true_time(tokens, depth)
            assert seen < 6 or took < 1.6 * TARGET, (seen, depth, tokens)
            sizer.observe(tokens, depth, took * draw.uniform(0.7, 1.3))
            depth, seen = depth + tokens, seen + 1


@pytest.mark.parametrize("depth", [0, 3000])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_recovers_from_three_observations_that_were_five_times_too_slow(depth: int, noise: float) -> None:
    for seed in range(10):
        draw = random.Random(seed)
        sizer = ChunkSizer(FORWARD, TOKEN, 2048)

        def observe(times: int, slow: float, sizer: ChunkSizer = sizer, draw: random.Random = draw) -> None:
            for _ in range(times):
                tokens = sizer.size(depth, TARGET)
                took = true_time(tokens, depth) * slow * draw.uniform(1 - noise, 1 + noise)
                sizer.observe(tokens, depth, took)

        observe(15, slow=1)
        before = sizer.size(depth, TARGET)
        observe(3, slow=5)
        assert sizer.size(depth, TARGET) < before
        observe(12, slow=1)
        if not noise:
            assert sizer.size(depth, TARGET) == before
        assert 0.5 * TARGET < true_time(sizer.size(depth, TARGET), depth) < 1.6 * TARGET


def test_one_wild_observation_is_hardly_believed() -> None:
    """The machine slept: a chunk took a hundred times what it takes."""
    sizer = ChunkSizer(FORWARD, TOKEN, 2048)
    sizer.observe(128, 0, true_time(128, 0))
    sizer.observe(128, 0, 100 * true_time(128, 0))
    assert 0.5 * TARGET < true_time(sizer.size(0, TARGET), 0) < TARGET
