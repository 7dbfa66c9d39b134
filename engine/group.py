"""The group: the batch that decodes, one token a row a step.

A lone row keeps the caches it was prepared with: the serial graph, no mask, no padding, nothing copied.
Others join it in parts (joining.py). Steps are pipelined: ``step`` queues the next forward before it reads
the tokens of the one before.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module

from motet.engine.batch import Batch
from motet.engine.constraints.constraint import constrained
from motet.engine.joining import Joining
from motet.engine.row import Row, Sampled
from motet.engine.sampling import Drawn, RowSampler

Observe: TypeAlias = Callable[[tuple[int, ...], mx.array], None]
"""Called with the rows' numbers and their logits [B, V] of each forward; for oracles."""

_CPU_COPY_RATE = 2.5e8  # bytes a second into memory that was never touched; used again it takes 20e9
_GPU_COPY_RATE = 2e10  # less than any GPU's memory is known for; only an H200 was measured, far above it
_FORCED = 64  # tokens that are forced are fed so many at once at most


@attrs.frozen
class _Join:
    """A join under way, and for which rows it is made."""

    rows: list[int]
    work: Joining


@attrs.frozen(eq=False)
class _Unread:
    """A step's tokens on the device, and for whom they are."""

    rows: list[Row]
    drawn: Drawn
    dropped: frozenset[int] = frozenset()

    def without(self, numbers: Sequence[int]) -> "_Unread":
        return attrs.evolve(self, dropped=self.dropped.union(numbers))

    def read(self) -> list[Sampled]:
        return [one for one in self.drawn.read(self.rows) if one.row.number not in self.dropped]


class Group:
    """Rows decoded together. Not thread-safe: it lives on the device thread.

    Args:
        model: the model.
        observe: see Observe.
        patience: seconds that tokens may wait for the next step to be queued behind theirs.
    """

    def __init__(self, model: Module, observe: Observe | None = None, patience: float = float("inf")) -> None:
        self._model = model
        self._patience = patience
        self._observe = observe
        self._reads_at_once = _on_cpu()
        self._copy_rate = _CPU_COPY_RATE if _on_cpu() else _GPU_COPY_RATE
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.batch = Batch([], [])
        self._register: mx.array | None = None  # [B] the tokens to feed next
        self._unread: _Unread | None = None  # a step that nobody has read yet
        self._sampler: RowSampler | None = None
        self._joining: _Join | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows that run."""
        return self.batch.rows

    def join(self, joiners: Batch, seconds: float = float("inf")) -> bool:
        """Take prepared rows in, or do the next part of it. The step in flight must be settled.

        Args:
            joiners: rows that were prepared together; while a join is unfinished, the same again.
            seconds: how long a part should take; the group may step once between two parts.

        Returns:
            Whether the rows have joined. If this raises, the group is as it was.
        """
        assert self._unread is None
        if not self.rows:
            self.batch, self._joining, self._register = joiners, None, _tokens(joiners)
        elif not self._joined(joiners, seconds):
            return False
        self._sampler = None
        return True

    def _joined(self, joiners: Batch, seconds: float) -> bool:
        joining = self._joining
        if joining is None or joining.rows != self.batch.numbers + joiners.numbers:
            joining = self._joining = self._begin(joiners, seconds)
        try:
            done = joining.work.advance()
        except Exception:
            self._joining = None
            raise
        if not done:
            return False
        self._joining = None
        if not joining.work.fits():
            return self._joined(joiners, float("inf"))  # a step more or less than planned: all at once
        caches = joining.work.caches()
        assert self._register is not None
        self._register = mx.concatenate([self._register, _tokens(joiners)])
        self.batch = Batch([*self.rows, *joiners.rows], caches, merged=True)
        return True

    def _begin(self, joiners: Batch, seconds: float) -> _Join:
        ahead = max(row.limit - row.made for row in [*self.rows, *joiners.rows])
        work = Joining(self.batch.caches, joiners.caches, ahead)
        work.plan(max(1, math.ceil(work.nbytes / self._copy_rate / seconds)))
        return _Join(self.batch.numbers + joiners.numbers, work)

    def step(self, built: Callable[[], None] | None = None) -> list[Sampled]:
        """Queue a step, then read the tokens of the one before it.

        Args:
            built: called when the step's graph is built and its evaluation is about to begin: from
                here on the interpreter lock is free for other threads.

        Returns:
            What was read, in the rows' order: mostly nothing on the first step after a settle. Rows that end
            are still in the group; ``drop`` takes them out.
        """
        if self._unread is not None and all(row.made + 1 >= row.limit for row in self.rows):
            return self.settle()  # the tokens in flight are each row's last
        if any(row.constraint is not None for row in self.rows):
            return self._constrained_step(built)
        previous = self._register
        assert previous is not None
        drawn = self._draw(self._forward(previous[:, None]), previous)
        if built is not None:
            built()
        waited = _evaluate(drawn.arrays)
        unread, self._unread, self._register = self._unread, _Unread(self.rows, drawn), drawn.tokens
        if unread is not None:
            return unread.read()
        # On a CPU async_eval returns when the step is nearly done. A slow one is read at once, for to
        # queue another before it would make its readers wait for two.
        return self.settle() if waited > self._patience else []

    def _constrained_step(self, built: Callable[[], None] | None) -> list[Sampled]:
        """A step of which some rows are held to grammars: their masks need the tokens of the step before.

        So the forward is queued first, then those tokens are read and the masks filled while it runs, then
        the draw is queued behind it. On a CPU, where nothing runs while another is queued, tokens are read
        as soon as they are drawn, and masks are filled while the next forward is built and run.
        """
        previous, told = self._register, []
        assert previous is not None
        feed = previous[:, None]
        if self._unread is None:
            told = self._forced()
            if any(one.ends for one in told):
                return told
            feed = mx.concatenate([feed, _fed(told)], axis=1) if told else feed
        logits = self._forward(feed)
        if built is not None:
            built()
        waited = _evaluate([logits])
        if self._unread is not None:
            told = self.settle()
            forced = self._forced()
            told += forced
            if len(self.rows) == 1 and told[-1].ends:
                return told
            if forced:
                feed = _fed(forced)
                logits = self._forward(feed)
        drawn = self._draw(constrained(logits, [row.constraint for row in self.rows]), feed[:, -1])
        waited += _evaluate(drawn.arrays)
        self._unread, self._register = _Unread(self.rows, drawn), drawn.tokens
        if any(one.ends for one in told):
            return told  # what was drawn for them is not to be read
        return told + self.settle() if self._reads_at_once or waited > self._patience else told

    def _forced(self) -> list[Sampled]:
        """What a lone row's grammar forces next, which is then fed in one forward.

        Not for several: the others would be fed as many tokens that are none.
        """
        if len(self.rows) > 1 or self.batch.merged:
            return []
        taken = self.rows[0].take_forced(_FORCED)
        if taken:
            self._sampler = None  # it would miss them
        return taken

    def _forward(self, tokens: mx.array) -> mx.array:
        """[B, V]: the logits behind tokens [B, T], which the caches then hold."""
        logits: mx.array = self._model(tokens, cache=self.batch.caches)[:, -1, :]
        for row in self.rows:
            row.fed += tokens.shape[1]
        if self._observe is not None:
            self._observe(tuple(self.batch.numbers), logits)
        return logits

    def _draw(self, logits: mx.array, fed: mx.array) -> Drawn:
        if self._sampler is None:
            self._sampler = RowSampler([row.session for row in self.rows])
        return self._sampler.draw(logits, fed)

    def settle(self) -> list[Sampled]:
        """Read the tokens of the step in flight, if one is."""
        unread, self._unread = self._unread, None
        return [] if unread is None else unread.read()

    def drop(self, numbers: Sequence[int]) -> None:
        """Take rows out."""
        before = len(self.rows)
        keep = self.batch.drop(numbers)
        if not keep:
            self.clear()
        elif len(keep) < before:
            assert self._register is not None
            self._register = self._register[mx.array(keep)]
            if self._unread is not None:
                self._unread = self._unread.without(numbers)
            self._sampler = None


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)


def _evaluate(arrays: list[mx.array]) -> float:
    """Begin to evaluate; the seconds that it took, which on a CPU are most of what there is to do."""
    started = time.perf_counter()
    mx.async_eval(arrays)  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


def _fed(taken: list[Sampled]) -> mx.array:
    """[1, T] uint32: the tokens that a lone row has taken."""
    return mx.array([[one.token for one in taken]], dtype=mx.uint32)


def _tokens(batch: Batch) -> mx.array:
    """[B] the tokens that prepared rows feed next."""
    tokens = [row.token for row in batch.rows if row.token is not None]
    return tokens[0] if len(tokens) == 1 else mx.concatenate(tokens)
