"""Measures, at load, what the loaded model's rows cost: its caches' bytes, and a chunk's activations.

From MLX's own counter of peak memory, over a few short forwards of one row.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from motet.engine.batch import Batch
from motet.engine.joining import MOST_ROOM
from motet.engine.layouts.choice import layout_of, leaves
from motet.engine.layouts.port import Cost
from motet.engine.model import Model
from motet.engine.projection import Activations, Projection, Ring
from motet.engine.row import Row
from motet.engine.session import SamplingSession

_PROBE = 64  # tokens of a measured chunk


def measure(model: Model, *, batched: bool, chunk: int, keeps: bool = False) -> Projection:
    """The model's projection.

    Args:
        model: the loaded model.
        batched: whether rows share a batch; else they are served one at a time.
        chunk: the most tokens of a prompt's chunk.
        keeps: whether snapshots are taken of rows that go on.
    """
    probe = _probe(model)
    batch, activations = _activations(model, probe)
    costs = _costs(model, batch, probe)
    windows = sorted({cost.window for cost in costs if cost.window is not None})
    return Projection(
        fixed=sum(cost.fixed for cost in costs),
        per_token=sum(cost.per_token for cost in costs if cost.window is None),
        rings=tuple(
            Ring(window, sum(cost.per_token for cost in costs if cost.window == window)) for window in windows
        ),
        most_room=MOST_ROOM if batched else 0,
        chunk=chunk,
        activations=activations,
        vocabulary=model.facts.vocabulary,
        keeps=keeps,
    )


def _probe(model: Model) -> int:
    """Tokens of a measured chunk: eight of them must fit the context."""
    context = model.facts.context
    return _PROBE if context is None else max(2, min(_PROBE, context // 8))


def _fresh(model: Model) -> Batch:
    return Batch([Row(0, 0, SamplingSession(), frozenset(), 1 << 30)], model.caches())


def _read(model: Model, batch: Batch, count: int) -> None:
    fed = batch.rows[0].fed
    batch.read(model.module, [[(7919 * (fed + i) + 13) % model.facts.vocabulary for i in range(count)]])


def _activations(model: Model, probe: int) -> tuple[Batch, Activations]:
    """From chunks of two sizes, and of one size at four depths; and the row that was read for it."""
    half = probe // 2
    _read(model, _fresh(model), half)  # builds kernels
    lesser, batch = _fresh(model), _fresh(model)
    short = _peak(lambda: _read(model, lesser, half))
    peaks = [_peak(lambda: _read(model, batch, probe)) for _ in range(4)]
    # The second and the fourth find room in the buffers that the first made.
    per_score = max((peaks[3] - peaks[1]) / (probe * 2 * probe), _least_per_score(model))
    scores = probe * probe - half * half
    per_token = max((peaks[0] - short - per_score * scores) / (probe - half), 0)
    rest = [peak - per_token * probe - per_score * probe * probe * (i + 1) for i, peak in enumerate(peaks)]
    return batch, Activations(max(*rest, 0), per_token, per_score)


def _least_per_score(model: Model) -> float:
    """On a CPU attention is not fused: each head's scores are held in float32, and a share of them twice.

    A layer that needs more than attention does at these lengths (experts) would hide that.
    """
    return 5 * model.facts.heads if mx.default_device() == mx.Device(mx.cpu) else 0


def _peak(work: Callable[[], None]) -> int:
    """Bytes that the work held beyond what it began with and what it left."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    mx.synchronize()
    return int(mx.get_peak_memory() - max(before, mx.get_active_memory()))


def _costs(model: Model, batch: Batch, probe: int) -> list[Cost]:
    """Of every leaf cache of one row, which holds four chunks."""
    held = leaves(batch.caches)
    unknown = {i: leaf.nbytes for i, leaf in enumerate(held) if not _known(leaf)}
    costs = {i: layout_of(leaf).cost(leaf) for i, leaf in enumerate(held) if i not in unknown}
    if unknown:
        before = batch.rows[0].fed
        for _ in range(4):
            _read(model, batch, probe)
        later = leaves(batch.caches)
        for i, nbytes in unknown.items():
            costs[i] = _slope(nbytes, before, later[i].nbytes, batch.rows[0].fed)
    return [costs[i] for i in range(len(held))]


def _known(leaf: Any) -> bool:
    try:
        layout_of(leaf)
    except TypeError:
        return False
    return True


def _slope(early: int, before: int, late: int, after: int) -> Cost:
    """A cache of a kind that no layout knows: so much a token, and the rest fixed."""
    per_token = -(-(late - early) // (after - before)) if late > early else 0
    return Cost(fixed=max(early - per_token * before, 0), per_token=per_token)
