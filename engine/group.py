"""The group: the rows that go through the model together, one token a step.

A lone row keeps the caches it was prepared with: the serial graph, no mask, no padding, nothing
copied. When a second row joins (joining.py), mlx-lm's batch caches hold both, left-padded to the longest;
they stay until the group is empty.

Steps are pipelined: ``step`` queues the next forward before it reads the tokens of the one before.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module

from motet.engine.joining import Joining
from motet.engine.row import Finish, Row
from motet.engine.sampling import RowSampler
from motet.engine.state import nbytes

Observe: TypeAlias = Callable[[tuple[int, ...], mx.array], None]
"""Called with the rows' numbers and their logits [B, V] of each forward; for oracles."""

Sampled: TypeAlias = tuple[Row, int, Finish | None]

_COPY_RATE = 1e9  # bytes a second, to begin with; joins are timed


@attrs.frozen
class _Join:
    """A join under way: for which rows it is made, and what one part of it copies."""

    rows: list[int]
    work: Joining
    part_bytes: float


class Group:
    """Rows decoded together. Not thread-safe: it lives on the device thread."""

    def __init__(self, model: Module, observe: Observe | None = None) -> None:
        self._model = model
        self._observe = observe
        self._copy_rate = _COPY_RATE
        self.rows: list[Row] = []
        self._clear()

    def _clear(self) -> None:
        self.rows = []
        self.caches: list[Any] = []
        self._merged = False
        self._register: mx.array | None = None  # [B] the tokens to feed next
        self._unread: list[Row] | None = None  # rows of a register that nobody has read yet
        self._sampler: RowSampler | None = None
        self._joining: _Join | None = None

    def join(self, row: Row, seconds: float = float("inf")) -> bool:
        """Take a prepared row in, or do the next part of it. The step in flight must be settled.

        Args:
            row: the row; while a join is unfinished, the same again.
            seconds: how long a part should take; the group may step once between two parts.

        Returns:
            Whether the row has joined. If this raises, the group is as it was.
        """
        assert self._unread is None and row.token is not None
        if not self.rows:
            self.caches, self._register = row.caches, row.token
            self._joining = None
        elif not self._joined(row, seconds):
            return False
        self.rows = [*self.rows, row]
        self._sampler = None
        return True

    def _joined(self, row: Row, seconds: float) -> bool:
        joining = self._joining
        if joining is None or joining.rows != [r.number for r in self.rows]:
            joining = self._joining = self._begin(row, seconds)
        started = time.perf_counter()
        try:
            done = joining.work.advance()
        except Exception:
            self._joining = None
            raise
        self._timed(joining.part_bytes, time.perf_counter() - started)
        if not done:
            return False
        self._joining = None
        if not joining.work.fits():
            return self._joined(row, float("inf"))  # a step more or less than planned: all at once
        self.caches, self._merged = list(joining.work.caches()), True
        assert self._register is not None
        assert row.token is not None
        self._register = mx.concatenate([self._register, row.token])
        row.caches = []
        return True

    def _begin(self, row: Row, seconds: float) -> "_Join":
        width = len(self.rows) + 1
        longest = max(row.fed, max(cache.size() for cache in self.caches))
        total = nbytes(row.caches) * width * longest // max(row.caches[0].keys.shape[2], 1)
        parts = min(len(self.caches), max(1, math.ceil(total / self._copy_rate / seconds)))
        ahead = max(r.limit - r.made for r in [*self.rows, row])
        work = Joining(self.caches, row, parts, ahead)
        return _Join([r.number for r in self.rows], work, total / parts)

    def _timed(self, copied: float, seconds: float) -> None:
        rate = copied / max(seconds, 1e-6)
        self._copy_rate += 0.5 * (min(max(rate, self._copy_rate / 4), self._copy_rate * 4) - self._copy_rate)

    def step(self, built: Callable[[], None] | None = None) -> list[Sampled]:
        """Queue a step, then read the tokens of the one before it.

        Args:
            built: called when the step's graph is built and its evaluation is about to begin: from
                here on the interpreter lock is free for other threads.

        Returns:
            What was read, in the rows' order: nothing on the first step after a settle. Rows with a
            finish are still in the group; ``drop`` takes them out.
        """
        if self._unread is not None and all(row.made + 1 >= row.limit for row in self.rows):
            return self.settle()  # the tokens in flight are each row's last
        previous = self._register
        assert previous is not None
        logits = self._model(previous[:, None], cache=self.caches)[:, -1, :]
        if self._sampler is None:
            self._sampler = RowSampler([row.session for row in self.rows])
        if self._observe is not None:
            self._observe(tuple(row.number for row in self.rows), logits)
        register = self._sampler.draw(logits)
        if built is not None:
            built()
        mx.async_eval(register)  # type: ignore[no-untyped-call]
        for row in self.rows:
            row.fed += 1
        unread, self._unread, self._register = self._unread, self.rows, register
        return _read(unread, previous) if unread is not None else []

    def settle(self) -> list[Sampled]:
        """Read the tokens of the step in flight, if one is."""
        unread, self._unread = self._unread, None
        if unread is None:
            return []
        assert self._register is not None
        return _read(unread, self._register)

    def extract(self, number: int) -> list[Any]:
        """One row's caches as caches of a lone row: handed over if it is alone, else copied."""
        if not self._merged:
            return self.caches
        index = [row.number for row in self.rows].index(number)
        caches = [cache.extract(index) for cache in self.caches]
        mx.async_eval([cache.state for cache in caches])  # type: ignore[no-untyped-call]
        return caches

    def drop(self, numbers: Sequence[int]) -> None:
        """Take rows out, with the left padding that the others then share."""
        keep = [i for i, row in enumerate(self.rows) if row.number not in numbers]
        if not keep:
            self._clear()
            return
        if len(keep) == len(self.rows):
            return
        for cache in self.caches:
            cache.filter(keep)
        assert self._register is not None
        self._register = self._register[mx.array(keep)]
        self.rows = [self.rows[i] for i in keep]
        if self._unread is not None:
            self._unread = self.rows
        self._sampler = None

    def clear(self) -> None:
        """Drop everything."""
        self._clear()


def _read(rows: list[Row], register: mx.array) -> list[Sampled]:
    sampled: list[Sampled] = []
    tokens: Any = register.tolist()
    for row, token in zip(rows, tokens, strict=True):
        row.made += 1
        sampled.append((row, token, row.finish(token)))
    return sampled
