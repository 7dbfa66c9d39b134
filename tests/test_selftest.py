"""The load-time self-test on every family: what it lets into a batch, and what it finds wrong."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import families
from motet.engine import selftest
from motet.engine.model import Model

DENSE = ("llama", "qwen3", "minicpm")  # MLX's CPU back end has no bfloat16 for the experts of the others


def load(family: str, dtype: mx.Dtype = mx.float32, wrap: Any = None) -> Model:
    model, _ = families.loader(family, dtype, wrap)()
    return model


class Wrong:
    """A model whose logits [B, L, V] go through ``change(B, logits)``."""

    def __init__(self, model: Any, change: Callable[[int, mx.array], mx.array]) -> None:
        self._model, self._change = model, change

    def __call__(self, tokens: mx.array, **options: Any) -> mx.array:
        return self._change(tokens.shape[0], self._model(tokens, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def found_on(change: Callable[[int, mx.array], mx.array]) -> selftest.SelfTest:
    return selftest.run(load("llama", wrap=lambda model: Wrong(model, change)), 8)


# --- the families -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", families.BATCHED)
def test_families_share_a_batch_in_float32(family: str) -> None:
    found = selftest.run(load(family), 8)
    assert found.alone is None and found.apart is None and found.snapshots
    assert found.error is not None and found.error < 1e-5
    assert found.step_seconds > 0 and found.token_seconds > 0


@pytest.mark.parametrize("family", DENSE)
def test_plain_families_share_a_batch_in_bfloat16(family: str) -> None:
    found = selftest.run(load(family, mx.bfloat16), 8)
    assert found.alone is None and found.snapshots
    assert found.error is not None and found.error < 0.05


def test_gemma2_is_found_wrong() -> None:
    """Upstream it reshapes its scores past the mask; its caches are plain, so only the logits tell."""
    found = selftest.run(load("gemma2"), 8)
    assert found.alone is not None and "B = 2" in found.alone
    assert found.error is not None and found.error > selftest.BOUNDS["float32"]


@pytest.mark.parametrize("family", ["llama4", "deepseek_v41"])
def test_caches_without_a_batch_layout_are_named(family: str) -> None:
    found = selftest.run(load(family), 8)
    assert found.alone is not None and "no batch layout" in found.alone and found.apart == found.alone
    assert found.step_seconds > 0 and found.token_seconds > 0


def test_a_near_tie_that_falls_the_other_way_is_no_fault() -> None:
    """The rows are fed other tokens then, and their logits have nothing in common."""
    first, second = 5, 6

    def tied(rows: int, logits: mx.array) -> mx.array:
        best = logits.max(axis=-1) + 1
        logits[..., first] = best
        logits[..., second] = best + (0.001 if rows > 1 else -0.001)
        return logits

    found = found_on(tied)
    assert found.alone is found.apart is found.fresh is found.level is None
    assert found.error is not None and found.error < 0.01


def test_one_row_is_never_tried_in_a_batch() -> None:
    widths = set()

    def watch(rows: int, logits: mx.array) -> mx.array:
        widths.add(rows)
        return logits

    found = selftest.run(load("llama", wrap=lambda model: Wrong(model, watch)), 1)
    assert found.alone is not None and found.error is None and found.snapshots
    assert widths == {1}


class Planning(Wrong):
    """A model on a clock of its own: a token takes a millisecond, and a new shape ``seconds`` more."""

    def __init__(self, model: Any, seconds: float) -> None:
        super().__init__(model, lambda _, logits: logits)
        self.now = 0.0
        self._seconds, self._seen = seconds, set[tuple[int, ...]]()

    def __call__(self, tokens: mx.array, **options: Any) -> mx.array:
        self.now += 0.001 * tokens.shape[1] + self._seconds * (tokens.shape not in self._seen)
        self._seen.add(tokens.shape)
        return super().__call__(tokens, **options)


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_what_a_new_shape_costs_is_told_apart_from_what_a_token_costs(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("llama", wrap=lambda model: Planning(model, seconds))
    monkeypatch.setattr(selftest, "time", SimpleNamespace(perf_counter=lambda: model.module.now))
    found = selftest.run(model, 8)
    # A step's own token is counted to the forward, a 64th of a chunk.
    assert found.token_seconds == pytest.approx(0.001 * 63 / 64)
    assert found.shape_seconds == pytest.approx(seconds, abs=0.0001)


# --- models that are made wrong ---------------------------------------------------------------


def test_a_model_that_is_right_passes_through_the_wrapper() -> None:
    """Else the tests below would show nothing."""
    assert found_on(lambda _, logits: logits).alone is None


@pytest.mark.parametrize("width", [2, 3])
def test_a_model_that_raises_at_a_width_falls_back_with_its_words(width: int) -> None:
    def change(rows: int, logits: mx.array) -> mx.array:
        if rows == width:
            raise ValueError("cannot broadcast")
        return logits

    found = found_on(change)
    assert found.alone is not None and f"B = {width}" in found.alone
    assert "ValueError: cannot broadcast" in found.alone
    assert found.snapshots  # a lone row still begins from another's state


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("row", [0, -1])
def test_a_model_that_gives_nan_in_one_row_at_a_width_falls_back(width: int, row: int) -> None:
    def change(rows: int, logits: mx.array) -> mx.array:
        if rows == width:
            logits[row] = mx.nan
        return logits

    found = found_on(change)
    assert found.alone is not None and f"B = {width}" in found.alone


def test_a_model_that_is_off_at_a_width_by_more_than_rounding_falls_back() -> None:
    """A fifth of the logits' spread is over the bound of float32; a thousandth is not."""

    def off(by: float) -> selftest.SelfTest:
        def change(rows: int, logits: mx.array) -> mx.array:
            noise = mx.random.normal(logits.shape, key=mx.random.key(1))
            return logits + by * mx.std(logits) * noise if rows > 1 else logits

        return found_on(change)

    slightly, badly = off(0.001), off(0.2)
    assert slightly.alone is None and slightly.error is not None and 1e-4 < slightly.error < 1e-2
    assert badly.alone is not None and badly.error is not None and badly.error > 0.1


def test_a_model_that_raises_at_one_row_cannot_be_served_at_all() -> None:
    def change(rows: int, logits: mx.array) -> mx.array:
        raise ValueError("cannot do anything")

    with pytest.raises(ValueError, match="cannot do anything"):
        found_on(change)
