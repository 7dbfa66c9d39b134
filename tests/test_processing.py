"""logit_bias, the penalties and log-probabilities, held to mlx-lm's processors and to plain numpy."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some
from mlx_lm.sample_utils import make_logits_processors, make_repetition_penalty

from motet.engine.logprobs import Capture
from motet.engine.processing import Processing
from motet.engine.sampling import RowSampler
from motet.engine.session import SamplingSession

WIDTH = 40
TOKENS = some.lists(some.integers(0, WIDTH - 1), max_size=12)
PROMPT = some.lists(some.integers(0, WIDTH - 1), min_size=1, max_size=12)
PENALTY = some.sampled_from([-2.0, -0.5, 0.0, 0.7, 2.0])
BIAS = some.dictionaries(some.integers(0, WIDTH - 1), some.floats(-100, 100))
REPETITION = some.sampled_from([0.5, 1.0, 1.3, 2.0])


def logits_of(seed: int, rows: int = 1) -> mx.array:
    return 3 * mx.random.normal((rows, WIDTH), key=mx.random.key(seed))


@some.composite
def sampling_sessions(draw: Any) -> SamplingSession:
    generated = draw(TOKENS)
    return SamplingSession(
        repetition_penalty=draw(REPETITION),
        repetition_context=draw(some.integers(1, 30)),
        presence_penalty=draw(PENALTY),
        frequency_penalty=draw(PENALTY),
        logit_bias=tuple(draw(BIAS).items()),
        prompt=tuple(draw(PROMPT)),
        generated=generated,
        drawn=len(generated),
    )


def reference(session: SamplingSession, generated: Sequence[int], logits: Any) -> Any:
    """The processing of one row in plain numpy, in its order; float64."""
    its = np.array(logits, dtype=np.float64)
    for token, bias in session.logit_bias:
        its[token] += bias
    last = [*session.prompt, *generated][-session.repetition_context :]
    for token in set(last):
        its[token] *= session.repetition_penalty if its[token] < 0 else 1 / session.repetition_penalty
    for token in set(generated):
        its[token] -= session.presence_penalty + session.frequency_penalty * list(generated).count(token)
    return its


@settings(max_examples=60, deadline=None)
@given(some.lists(sampling_sessions(), min_size=1, max_size=5), some.lists(TOKENS, min_size=5, max_size=5))
def test_rows_are_processed_as_the_reference_says_while_tokens_come(
    rows: list[SamplingSession], later: list[list[int]]
) -> None:
    """Each row by its own values, over tokens that the session has and others that come with the steps."""
    processing = Processing(rows, pending=False, width=WIDTH)
    steps = min(map(len, later))
    for step in range(steps + 1):
        fed = None if step == 0 else mx.array([its[step - 1] for its in later[: len(rows)]], dtype=mx.uint32)
        logits = logits_of(step, len(rows))
        ours = np.array(processing.apply(logits, fed))
        for i, session in enumerate(rows):
            generated = session.generated + later[i][:step]
            theirs = reference(session, generated, logits[i])
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(PROMPT, TOKENS, some.integers(1, 30), some.sampled_from([0.5, 1.3, 2.0]))
def test_the_repetition_penalty_is_mlx_lms(
    prompt: list[int], generated: list[int], context: int, penalty: float
) -> None:
    session = SamplingSession(
        repetition_penalty=penalty,
        repetition_context=context,
        prompt=tuple(prompt),
        generated=generated,
        drawn=len(generated),
    )
    ours = Processing([session], pending=False, width=WIDTH).apply(logits_of(1), None)
    theirs = make_repetition_penalty(penalty, context)(mx.array(prompt + generated), logits_of(1))
    assert np.array_equal(np.array(ours), np.array(theirs))


def test_bias_and_penalties_are_mlx_lms_where_the_completion_is_all_they_look_at() -> None:
    """Theirs look at the last so many tokens of both: here all of these are the completion's."""
    generated = [3, 4, 3, 9, 3]
    bias = {4: 2.0, 7: -5.0}
    session = SamplingSession(
        logit_bias=tuple(bias.items()),
        repetition_penalty=1.4,
        presence_penalty=0.6,
        frequency_penalty=0.3,
        prompt=(3,),
        generated=generated,
        drawn=len(generated),
    )
    theirs = logits_of(2)
    for process in make_logits_processors(bias, 1.4, 20, 0.6, 20, 0.3, 20):
        theirs = process(mx.array(generated), theirs)
    ours = Processing([session], pending=False, width=WIDTH).apply(logits_of(2), None)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-6, atol=1e-6)


def test_the_prompt_is_nothing_to_presence_and_frequency() -> None:
    session = SamplingSession(presence_penalty=2, frequency_penalty=2, prompt=(1, 2, 3))
    ours = Processing([session], pending=False, width=WIDTH).apply(logits_of(3), None)
    assert np.array_equal(np.array(ours), np.array(logits_of(3)))


def drawn_in_parts(make: Callable[[], SamplingSession], pieces: Sequence[int], lag: int) -> list[int]:
    """Tokens of one row whose sampler is built anew after each piece, read ``lag`` steps late."""
    session, tokens = make(), []
    fed, step = None, 0
    for piece in pieces:
        sampler = RowSampler([session])
        for _ in range(piece):
            drawn = sampler.draw(logits_of(step), fed)
            fed, step = drawn.tokens, step + 1
            tokens.append(int(fed.item()))
            session.generated[:] = tokens[: len(tokens) - lag]
    return tokens


def penalized() -> SamplingSession:
    return SamplingSession(
        temperature=1,
        seed=4,
        repetition_penalty=1.5,
        repetition_context=5,
        presence_penalty=1,
        frequency_penalty=1,
        prompt=(1, 2),
    )


def test_the_history_goes_on_when_the_rows_change() -> None:
    """A sampler built anew knows all tokens, also the one that is still on the device."""
    want = drawn_in_parts(penalized, [24], lag=0)
    assert len(set(want)) > 5
    for lag in (0, 1):
        assert drawn_in_parts(penalized, [1, 2, 9, 1, 11], lag=lag) == want
    without = drawn_in_parts(lambda: SamplingSession(temperature=1, seed=4), [24], lag=0)
    assert without != want


def test_log_probabilities_are_those_after_processing_and_before_the_filters() -> None:
    rows = [
        SamplingSession(logprobs=3),
        SamplingSession(),
        SamplingSession(temperature=0.3, top_k=2, seed=1, logprobs=0),
        SamplingSession(logit_bias=((5, 30.0), (6, -100.0)), logprobs=20, temperature=2.0, top_p=0.1, seed=2),
    ]
    logits = logits_of(9, 4)
    drawn = RowSampler(rows).draw(logits)
    assert drawn.captured is not None
    told, tokens = drawn.captured.read(), drawn.tokens.tolist()
    assert sorted(told) == [0, 2, 3]
    for i, (logprob, top) in told.items():
        its = reference(rows[i], [], logits[i])
        want = its - np.log(np.exp(its).sum())
        assert isinstance(tokens, list) and abs(logprob - want[tokens[i]]) < 1e-4
        order = np.argsort(-want)[: rows[i].logprobs]
        assert [token for token, _ in top] == order.tolist()
        np.testing.assert_allclose([value for _, value in top], want[order], atol=1e-4)


def test_a_token_that_cannot_be_drawn_is_not_among_the_likeliest() -> None:
    logits = mx.where(mx.arange(WIDTH) < 3, logits_of(1), -mx.inf)
    captured = Capture([SamplingSession(logprobs=20)], []).take(logits, None, mx.array([0]))
    ((_, top),) = captured.read().values()
    assert sorted(token for token, _ in top) == [0, 1, 2]


def test_nothing_is_captured_for_rows_that_do_not_ask() -> None:
    assert (
        RowSampler([SamplingSession(), SamplingSession(temperature=1)]).draw(logits_of(1, 2)).captured is None
    )
