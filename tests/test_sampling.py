"""Drawing for many rows at once, held to mlx-lm's samplers and to each row alone."""

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, apply_xtc, greedy_sampler

from motet.engine.filters import Filters
from motet.engine.sampling import RowSampler
from motet.engine.session import SamplingSession

WIDTH = 300


def logprobs(rows: int, seed: int = 0) -> mx.array:
    logits = 3 * mx.random.normal((rows, WIDTH), key=mx.random.key(seed))
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("top_k", [0, 1, 7, 250])
def test_filters_keep_what_mlx_lms_keep(top_p: float, min_p: float, top_k: int) -> None:
    given = logprobs(5)
    theirs = apply_top_p(given, top_p)
    if min_p:
        theirs = apply_min_p(theirs, min_p)
    if top_k:
        theirs = apply_top_k(theirs, top_k)
    session = SamplingSession(temperature=1, top_p=top_p, top_k=top_k, min_p=min_p)
    ours = Filters([session] * 5).apply(given)
    assert np.array_equal(np.array(ours), np.array(theirs))


def test_a_top_p_of_0_leaves_the_likeliest() -> None:
    given = logprobs(5)
    kept = np.array(Filters([SamplingSession(temperature=1, top_p=0)] * 5).apply(given))
    assert [np.flatnonzero(np.isfinite(row)).tolist() for row in kept] == [
        [best] for best in np.array(given).argmax(axis=-1)
    ]


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("special", [(), (3,), (3, 0, 299)])
def test_xtc_excludes_what_mlx_lms_does(threshold: float, top_p: float, special: tuple[int, ...]) -> None:
    """Of every row by itself, for theirs takes one threshold for all."""
    given = logprobs(8)
    given[:, 3] = given.max(axis=-1)  # so that a special token is a top choice
    for i in range(8):
        row = given[i : i + 1] - mx.logsumexp(given[i : i + 1], axis=-1, keepdims=True)
        kept = apply_top_p(row, top_p) if top_p < 1 else row
        theirs = apply_xtc(kept, 1.0, threshold, list(special))
        session = SamplingSession(
            temperature=1, top_p=top_p, xtc_probability=1, xtc_threshold=threshold, xtc_special=special
        )
        ours = Filters([session]).apply(row)
        assert np.array_equal(np.array(ours), np.array(theirs))
        assert threshold > 0.02 or not np.array_equal(np.array(ours), np.array(kept))


def test_xtc_comes_behind_top_k() -> None:
    """Of the three likeliest it leaves the least, not others that were behind them."""
    session = SamplingSession(temperature=1, top_k=3, xtc_probability=1, xtc_threshold=0.01)
    ours = np.array(Filters([session]).apply(mx.log(mx.array([[0.4, 0.3, 0.2, 0.06, 0.04]]))))
    assert np.isfinite(ours).tolist() == [[False, False, True, False, False]]


def test_xtc_happens_as_often_as_it_should_and_by_the_rows_own_seed() -> None:
    def applied(seed: int) -> list[bool]:
        session = SamplingSession(temperature=1, xtc_probability=0.3, seed=seed)
        found = []
        for _ in range(4000):
            found.append(session.excludes_top_choices())
            session.drawn += 1
        return found

    assert 0.27 < np.mean(applied(1)) < 0.33  # four standard deviations
    assert applied(1) == applied(1) != applied(2)


def test_a_row_without_filters_passes_untouched_beside_one_with() -> None:
    given = logprobs(3)
    plain, tight = SamplingSession(temperature=1), SamplingSession(temperature=1, top_p=0.1, top_k=2)
    xtc = SamplingSession(temperature=1, xtc_probability=1, xtc_threshold=0, xtc_special=(1, 2))
    ours = np.array(Filters([plain, tight, xtc]).apply(given))
    assert np.array_equal(ours[0], np.array(given)[0])
    assert np.isfinite(ours[1]).sum() <= 2
    assert 1 <= np.isfinite(ours[2]).sum() <= 3


def test_greedy_rows_are_mlx_lms_greedy() -> None:
    logits = 5 * mx.random.normal((6, WIDTH), key=mx.random.key(1))
    theirs = greedy_sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert RowSampler([SamplingSession()] * 6).draw(logits).tokens.tolist() == theirs.tolist()


def sessions() -> list[SamplingSession]:
    """One of every kind, and some of several at once."""
    prompt = (5, 9, 5, 200)
    return [
        SamplingSession(),
        SamplingSession(temperature=1, seed=11),
        SamplingSession(temperature=0.7, top_p=0.9, seed=12),
        SamplingSession(repetition_penalty=1.8, repetition_context=6, prompt=prompt),
        SamplingSession(temperature=1.3, top_k=20, min_p=0.01, seed=13),
        SamplingSession(presence_penalty=2, prompt=prompt, logprobs=0),
        SamplingSession(temperature=0.9, frequency_penalty=1.5, seed=14, prompt=prompt, logprobs=3),
        SamplingSession(logit_bias=((7, 100.0),), logprobs=5),
        SamplingSession(temperature=1, xtc_probability=0.5, xtc_threshold=0.05, seed=15, xtc_special=(1,)),
        SamplingSession(
            temperature=1.1,
            top_p=0.95,
            seed=16,
            logit_bias=((3, -100.0), (4, 2.5)),
            repetition_penalty=0.7,
            repetition_context=3,
            presence_penalty=-1,
            frequency_penalty=0.5,
            prompt=prompt[:1],
        ),
        SamplingSession(logprobs=20),
    ]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_each_row_of_a_mixed_batch_draws_what_it_draws_alone(dtype: mx.Dtype) -> None:
    together, alone = RowSampler(sessions()), [RowSampler([session]) for session in sessions()]
    fed: mx.array | None = None
    for step in range(30):
        logits = 2 * mx.random.normal((len(alone), WIDTH), key=mx.random.key(step)).astype(dtype)
        drawn = together.draw(logits, fed)
        told = drawn.captured.read() if drawn.captured else {}
        assert sorted(told) == [5, 6, 7, 10]
        for i, one in enumerate(alone):
            its = one.draw(logits[i : i + 1], None if fed is None else fed[i : i + 1])
            assert its.tokens.tolist() == [drawn.tokens[i].item()]
            if its.captured is not None:
                assert its.captured.read()[0] == told[i]
        fed = drawn.tokens


def test_homogeneous_rows_share_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows with processing and filters sort and scatter as often as one."""
    calls: list[str] = []
    for name in ("sort", "argmax", "put_along_axis", "take_along_axis", "argpartition"):
        own = getattr(mx, name)
        monkeypatch.setattr(
            mx, name, lambda *a, _own=own, _name=name, **k: (calls.append(_name), _own(*a, **k))[1]
        )
    counts = []
    for rows in (1, 8):
        calls.clear()
        session = SamplingSession(
            temperature=1, top_p=0.9, repetition_penalty=1.1, prompt=(1, 2), logprobs=2, presence_penalty=1
        )
        RowSampler([attrs.evolve(session) for _ in range(rows)]).draw(logprobs(rows))
        counts.append(list(calls))
    assert counts[0] == counts[1] and "sort" in counts[0] and "put_along_axis" in counts[0]


def test_rows_that_ask_for_nothing_cost_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what greedy and plain warm rows need, nothing is built."""
    from motet.engine import sampling

    for name in ("Filters", "Processing", "Capture"):
        monkeypatch.setattr(sampling, name, None)
    for all_rows in ([SamplingSession()] * 3, [SamplingSession(temperature=1)] * 3):
        assert RowSampler(all_rows).draw(logprobs(3)).arrays[0].shape == (3,)


def test_a_seed_and_an_index_pick_the_key_and_nothing_else() -> None:
    def keys(seed: int) -> list[tuple[int, int]]:
        session = SamplingSession(temperature=1, seed=seed)
        found = []
        for _ in range(50):
            found.append(session.next_key())
            session.drawn += 1
        return found

    assert keys(5) == keys(5)
    assert len(set(keys(5)) | set(keys(6))) == 100


def test_samples_follow_the_distribution() -> None:
    """Chi-square over 20,000 samples of eight tokens; the bound is the 99.99% quantile for 7 degrees."""
    logits = mx.array([[0.0, 1.0, 2.0, 0.5, -1.0, 1.5, 0.2, -0.3]])
    weights = np.exp(np.array(logits[0]) / 0.8)
    expected = 20_000 * weights / weights.sum()
    rows = [SamplingSession(temperature=0.8, seed=seed) for seed in range(20_000)]
    drawn = RowSampler(rows).draw(mx.broadcast_to(logits, (20_000, 8))).tokens
    counts = np.bincount(np.array(drawn), minlength=8)
    assert float(((counts - expected) ** 2 / expected).sum()) < 29.9


def test_many_values_build_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 of each: nothing goes through mx.compile, whose kernels mlx-lm's samplers build one a value.

    Those are compiled when they are defined; that none of them is called is seen by taking them away.
    """

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(mx, "compile", forbidden)
    for name in vars(sample_utils):
        if name.startswith(("apply_", "categorical_")):
            monkeypatch.setattr(sample_utils, name, forbidden)
    fed: Any = mx.array([1], dtype=mx.uint32)
    for i in range(300):
        session = SamplingSession(
            temperature=0.5 + i / 300,
            top_p=0.5 + i / 700,
            top_k=i + 1,
            min_p=i / 3000,
            xtc_probability=1,
            xtc_threshold=i / 600,
            xtc_special=(i,),
            repetition_penalty=1.01 + i / 300,
            repetition_context=i % 7 + 1,
            presence_penalty=i / 150,
            frequency_penalty=-i / 150,
            logit_bias=((i, i / 3),),
            logprobs=i % 21,
            prompt=(1, 2, 3),
            seed=i,
        )
        sampler = RowSampler([session])
        mx.eval(sampler.draw(logprobs(1)).arrays, sampler.draw(logprobs(1), fed).arrays)
