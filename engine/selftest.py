"""The load-time self-test: does this model decode right when rows of unlike lengths share a batch?

Some models are silently wrong at B > 1 (gemma2 reshapes its scores past the mask); none can be told
by its cache classes. So the loaded model itself is asked: rows decoded together, padded, are held to
the same rows decoded alone. The test also times the model, warms its kernels, and tries whether
snapshots of its caches can be adopted.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from motet.engine.batch import Batch
from motet.engine.group import Group
from motet.engine.layouts.choice import layout_of, leaves, unbatchable
from motet.engine.model import Model
from motet.engine.row import Row
from motet.engine.session import SamplingSession
from motet.engine.state import copyable, fresh_copy

# Relative RMS error of the logits allowed between a row in a batch and the row alone. On the tiny
# families good models stay below 1e-5 in float32 (5e-2 in TF32 arithmetic, 3e-2 in the half formats),
# and gemma2 is above 0.18 at B = 2 and raises at 3: see tests/test_selftest.py.
BOUNDS = {"float32": 0.1, "bfloat16": 0.15, "float16": 0.15}

_LENGTHS = (7, 12, 19)
_FINE = 0.25  # of a bound, where one token's scale is all that can be wrong, and caution costs a forward
_NEW = (2, 12)  # a row that is new, and so short that its first token still tells, beside one that is not
_STEPS = 3
_PART = 4  # tokens of each prompt in a chunk of several
_UNLIKE_PARTS = (2, 6, 4)
_PROBE = 64  # tokens of the timed chunk
_OTHERS = (68, 72)  # of chunks in shapes that were never seen
_NEXT = 11  # what rows are fed behind their prompts: a near tie there would make the inputs differ


@attrs.frozen
class SelfTest:
    """What the self-test found."""

    alone: str | None
    """Why rows must be served one at a time; None if they can share a batch."""
    apart: str | None
    """Why prompts must be read one at a time; None if several can be read in one forward."""
    level: str | None
    """Why several must be read in equal parts; None if unlike ones can be padded."""
    fresh: str | None
    """Why rows that hold nothing must not be fed beside rows that do; None if they may."""
    snapshots: bool
    """Whether a row can begin from another row's state."""
    cuts: bool
    """Whether it can begin from any shorter prefix of that, however long it is."""
    step_seconds: float
    """One step of a lone row."""
    token_seconds: float
    """What each token of a prompt chunk adds to a forward: the first estimate for the prefill cohort."""
    shape_seconds: float = 0.0
    """What a chunk of a shape that was never seen adds: on CUDA each has its attention planned first."""
    error: float | None = None
    """The largest relative RMS error seen at B = 2 and 3."""


def run(model: Model, rows: int) -> SelfTest:
    """Test and time the model; a few forwards, well under a second for a small one.

    Args:
        model: the loaded model.
        rows: the most rows that are wanted in a batch; with 1 batching is not tried.
    """
    tokens, logits, step_seconds = _alone(model)
    token_seconds, shape_seconds = _time_chunks(model, step_seconds)
    tested = SelfTest(
        alone=None,
        apart=None,
        level=None,
        fresh=None,
        snapshots=_works(lambda: _adopts(model)),
        cuts=all(type(leaf) is KVCache for leaf in leaves(model.caches())),
        step_seconds=step_seconds,
        token_seconds=token_seconds,
        shape_seconds=shape_seconds,
    )
    if rows == 1:
        return _serial(tested, "one row was asked for")
    kinds = unbatchable(model.caches())
    if kinds:
        return _serial(tested, f"no batch layout for its caches: {', '.join(kinds)}")
    wrong, error = _together(model, tokens, logits, _apart)
    tested = attrs.evolve(tested, error=error)
    if wrong is not None:
        return _serial(tested, wrong)
    apart, _ = _together(model, tokens, logits, partial(_cohort, parts=(_PART,) * len(_LENGTHS)))
    fresh, _ = _together(model, tokens, logits, partial(_cohort, parts=(1, 1)), (_NEW,), _FINE)
    tested = attrs.evolve(tested, fresh=fresh)
    if not all(layout_of(leaf).pads for leaf in leaves(model.caches())):
        return attrs.evolve(tested, apart=apart, level="padding would reach its recurrent state")
    level, _ = _together(model, tokens, logits, partial(_cohort, parts=_UNLIKE_PARTS))
    return attrs.evolve(tested, apart=apart, level=apart or level)


def _serial(tested: SelfTest, reason: str) -> SelfTest:
    return attrs.evolve(tested, alone=reason, apart=reason, level=reason)


def _prompt(model: Model, length: int) -> list[int]:
    vocabulary = model.facts.vocabulary
    return [(7919 * (length + i) + 13 * i * i) % vocabulary for i in range(length)]


def _row(number: int, limit: int = 1 << 30) -> Row:
    return Row(number, 0, SamplingSession(), frozenset(), limit)


def _prepared(model: Model, length: int) -> Batch:
    prompt = _prompt(model, length)
    batch = Batch([_row(length)], model.caches())
    batch.read(model.module, [prompt[:-1]])
    return _begun(model, batch, prompt[-1:])


def _begun(model: Model, batch: Batch, last: list[int]) -> Batch:
    batch.begin(model.module, last)
    for row in batch.rows:
        row.token = mx.array([_NEXT % model.facts.vocabulary], dtype=mx.uint32)
    return batch


def _apart(model: Model, lengths: tuple[int, ...]) -> list[Batch]:
    """Each prompt read alone."""
    return [_prepared(model, length) for length in lengths]


def _cohort(model: Model, lengths: tuple[int, ...], *, parts: tuple[int, ...]) -> list[Batch]:
    """The prompts' last parts read together, from the unlike depths where they stand."""
    prompts = [_prompt(model, length) for length in lengths]
    rows = [Batch([_row(length)], model.caches()) for length in lengths]
    for row, prompt, part in zip(rows, prompts, parts, strict=False):
        if len(prompt) > part + 1:
            row.read(model.module, [prompt[: -part - 1]])
    batch = Batch.of(rows)
    batch.read(model.module, [prompt[-part - 1 : -1] for prompt, part in zip(prompts, parts, strict=False)])
    return [_begun(model, batch, [prompt[-1] for prompt in prompts])]


Prepare = Callable[[Model, tuple[int, ...]], list[Batch]]


def _decode(
    model: Model, lengths: tuple[int, ...], prepare: Prepare = _apart
) -> tuple[dict[int, list[mx.array]], float]:
    """Logits [V] of each row's steps, float32, all rows together; and seconds a step."""
    logits: dict[int, list[mx.array]] = {length: [] for length in lengths}

    def observe(rows: tuple[int, ...], step: mx.array) -> None:
        for i, row in enumerate(rows):
            logits[row].append(step[i].astype(mx.float32))

    group = Group(model.module, observe)
    for prepared in prepare(model, lengths):
        group.join(prepared)
    group.step()
    started = time.perf_counter()
    for _ in range(_STEPS - 1):
        group.step()
    group.settle()
    seconds = (time.perf_counter() - started) / (_STEPS - 1)
    mx.eval(logits)
    return logits, seconds


def _alone(model: Model) -> tuple[dict[int, list[int]], dict[int, list[mx.array]], float]:
    tokens: dict[int, list[int]] = {}
    logits: dict[int, list[mx.array]] = {}
    seconds = math.inf
    for length in (_NEW[0], *_LENGTHS):
        alone, took = _decode(model, (length,))
        seconds = min(seconds, took)
        logits |= alone
        tokens[length] = [_best(step) for step in alone[length]]
    return tokens, logits, seconds


def _together(
    model: Model,
    tokens: dict[int, list[int]],
    alone: dict[int, list[mx.array]],
    prepare: Prepare,
    batches: tuple[tuple[int, ...], ...] = (_LENGTHS[:2], _LENGTHS),
    share: float = 1.0,
) -> tuple[str | None, float | None]:
    bound = share * BOUNDS.get(model.facts.dtype, BOUNDS["float16"])
    worst = 0.0
    for lengths in batches:
        try:
            together, _ = _decode(model, lengths, prepare)
        except Exception as error:
            return f"at B = {len(lengths)} it raises {type(error).__name__}: {error}", None
        for length in lengths:
            for step, (a, b) in enumerate(zip(together[length], alone[length], strict=True)):
                error_now = _relative_rms(a, b)
                worst = max(worst, error_now)
                if not error_now <= bound:  # also a NaN
                    return (
                        f"at B = {len(lengths)} its logits differ from the same row alone "
                        f"(relative RMS {error_now:.2g}, bound {bound:g})"
                    ), worst
                if _best(a) != tokens[length][step]:
                    break  # a near tie fell the other way: from here on the inputs differ
    return None, worst


def _relative_rms(a: mx.array, b: mx.array) -> float:
    got, want = np.array(a), np.array(b)
    return float(np.sqrt(np.mean((got - want) ** 2)) / (np.std(want) + 1e-30))


def _best(logits: mx.array) -> int:
    token: Any = mx.argmax(logits).item()
    return int(token)


def _time_chunks(model: Model, step_seconds: float) -> tuple[float, float]:
    """What a token adds, and what a new shape does: nothing, but where shapes are planned."""
    _time_chunk(model, _PROBE)  # builds kernels
    seen = _time_chunk(model, _PROBE)
    token = max(seen - step_seconds, seen / 10) / _PROBE
    shape = min(_time_chunk(model, tokens) - (tokens - _PROBE) * token for tokens in _OTHERS) - seen
    return token, shape if shape > seen else 0.0


def _time_chunk(model: Model, tokens: int) -> float:
    batch, prompt = Batch([_row(0)], model.caches()), _prompt(model, tokens)
    started = time.perf_counter()
    batch.read(model.module, [prompt])
    return time.perf_counter() - started


def _works(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:  # a cache that cannot do it: the model is served without the prompt cache
        return False


def _adopts(model: Model) -> bool:
    """Whether a row that begins from a copy decodes as the original, neither disturbing the other."""
    original = _prepared(model, _LENGTHS[0])
    if not copyable(original.caches):
        return False
    caches = fresh_copy(original.caches)
    adopted = Batch([attrs.evolve(original.rows[0], session=SamplingSession())], caches)
    return _continue(model, original) == _continue(model, adopted)


def _continue(model: Model, batch: Batch) -> list[int]:
    group = Group(model.module)
    group.join(batch)
    sampled = group.step() + group.step() + group.settle()
    return [one.token for one in sampled]
