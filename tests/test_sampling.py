"""Drawing for many rows at once, held to mlx-lm's samplers and to each row alone."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, greedy_sampler

from motet.engine.sampling import RowSampler, SamplingSession, _Filters

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
    ours = _Filters([session] * 5).apply(given)
    assert np.array_equal(np.array(ours), np.array(theirs))


def test_a_row_without_filters_passes_untouched_beside_one_with() -> None:
    given = logprobs(2)
    plain, tight = SamplingSession(temperature=1), SamplingSession(temperature=1, top_p=0.1, top_k=2)
    ours = np.array(_Filters([plain, tight]).apply(given))
    assert np.array_equal(ours[0], np.array(given)[0])
    assert np.isfinite(ours[1]).sum() <= 2


def test_greedy_rows_are_mlx_lms_greedy() -> None:
    logits = 5 * mx.random.normal((6, WIDTH), key=mx.random.key(1))
    theirs = greedy_sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert RowSampler([SamplingSession()] * 6).draw(logits).tolist() == theirs.tolist()


def sessions() -> list[SamplingSession]:
    return [
        SamplingSession(),
        SamplingSession(temperature=1, seed=11),
        SamplingSession(temperature=0.7, top_p=0.9, seed=12),
        SamplingSession(),
        SamplingSession(temperature=1.3, top_k=20, min_p=0.01, seed=13),
    ]


def test_each_row_of_a_mixed_batch_draws_what_it_draws_alone() -> None:
    together, alone = RowSampler(sessions()), [RowSampler([session]) for session in sessions()]
    for step in range(30):
        logits = 3 * mx.random.normal((5, WIDTH), key=mx.random.key(step))
        got = together.draw(logits).tolist()
        assert got == [one.draw(logits[i : i + 1]).item() for i, one in enumerate(alone)]


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
    drawn = RowSampler(rows).draw(mx.broadcast_to(logits, (20_000, 8)))
    counts = np.bincount(np.array(drawn), minlength=8)
    assert float(((counts - expected) ** 2 / expected).sum()) < 29.9


def test_many_temperatures_build_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here goes through mx.compile, whose kernels mlx-lm's samplers build one a temperature."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(mx, "compile", forbidden)
    for i in range(300):
        session = SamplingSession(temperature=0.5 + i / 300, top_p=0.5 + i / 700, top_k=i + 1, seed=i)
        mx.eval(RowSampler([session]).draw(logprobs(1)))
