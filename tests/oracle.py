"""The oracle: what a device did, done again by mlx-lm's own code.

A trace is the device's command log with the logits it saw. The replay feeds mlx-lm the same chunks, joins and
retirements: ``generate_step`` over its own solo caches for a row until it is merged, ``GenerationBatch`` from
then on. Tokens are mlx-lm's own; logits are tapped off the model that it calls.
"""

from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch, StopSequences, generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler

from motet.channels.device import Chunk, Command, Join


@attrs.define
class Trace:
    """Filled in on the device thread by an engine that is given its two methods."""

    events: list[Command | tuple[tuple[int, ...], np.ndarray]] = attrs.Factory(list)

    def log(self, command: Command) -> None:
        self.events.append(command)

    def observe(self, rows: tuple[int, ...], logits: mx.array) -> None:
        self.events.append((rows, np.array(logits.astype(mx.float32))))

    def widths(self) -> set[int]:
        """The B of each step that really ran."""
        return {len(event[0]) for event in self.events if isinstance(event, tuple)}


class Tap:
    """A model that remembers the last logits of each call."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.seen: list[mx.array] = []

    def __call__(self, *arguments: Any, **options: Any) -> mx.array:
        logits = self._model(*arguments, **options)
        self.seen.append(logits[:, -1, :])
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@attrs.define
class Solo:
    """A row that has not been merged: caches as prefilled, and how many forwards followed."""

    caches: list[Any]
    last: int
    forwards: int = 1

    def run(self, tap: Tap) -> int:
        """Generate by mlx-lm's loop; return the token that the next forward would feed."""
        tap.seen.clear()
        # generate_step runs one forward ahead of the tokens that it yields.
        for _ in generate_step(
            mx.array([self.last]), tap, prompt_cache=self.caches, max_tokens=self.forwards - 1
        ):
            pass
        assert len(tap.seen) == self.forwards
        logits = tap.seen[-1]
        return int(greedy_sampler(logits - mx.logsumexp(logits, keepdims=True)).item())


@attrs.define
class Outcome:
    """What a replay found."""

    vectors: int = 0
    different: int = 0
    largest: float = 0.0
    widths: set[int] = attrs.Factory(set)

    def compare(self, ours: np.ndarray, theirs: mx.array) -> None:
        got, want = ours, np.array(theirs.astype(mx.float32))
        assert got.shape == want.shape
        self.vectors += len(want)
        self.different += int(np.any(got != want, axis=-1).sum())
        self.largest = max(self.largest, float(np.abs(got - want).max()))


class Replay:
    """Replays a trace on a model; ``outcome`` has the count of vectors that differ."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tap = Tap(model)
        self._rows: dict[int, Solo] = {}
        self._solo_logits: dict[int, list[np.ndarray]] = {}
        self._joined: list[int] = []
        self._batch: GenerationBatch | None = None
        self.outcome = Outcome()

    def run(self, trace: Trace) -> Outcome:
        for event in trace.events:
            match event:
                case Chunk():
                    self._chunk(event)
                case Join(row):
                    self._joined.append(row)
                case (rows, logits):
                    self._forward(rows, logits)
        for row in list(self._rows):
            self._check_solo(row)
        return self.outcome

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.opening is not None:
            assert chunk.opening.snapshot is None, "the oracle replays cold runs"
            self._rows[chunk.row] = Solo(make_prompt_cache(self._model), -1)
            self._solo_logits[chunk.row] = []
        row = self._rows[chunk.row]
        reading = chunk.tokens[:-1] if chunk.last else chunk.tokens
        if reading:
            self._model(mx.array([reading]), cache=row.caches)
            mx.eval([cache.state for cache in row.caches])
        row.last = chunk.tokens[-1]

    def _forward(self, rows: tuple[int, ...], logits: np.ndarray) -> None:
        self.outcome.widths.add(len(rows))
        first = len(rows) == 1 and not self._solo_logits.get(rows[0], [None])
        if first:  # the prompt's last token, alone
            self._solo_logits[rows[0]].append(logits)
            return
        self._group_to(rows)
        if self._batch is None:
            self._rows[rows[0]].forwards += 1
            self._solo_logits[rows[0]].append(logits)
            return
        self._tap.seen.clear()
        self._batch._step()
        self.outcome.compare(logits, self._tap.seen[-1])

    def _group_to(self, rows: tuple[int, ...]) -> None:
        """Bring mlx-lm's batch to these rows: retire those that ended, extend by those that joined."""
        if self._batch is not None and not set(self._batch.uids) & set(rows):
            self._batch = None  # it had emptied
        if self._batch is None:
            if len(rows) == 1:
                return
            self._batch = self._merged(rows[0])
        keep = [i for i, row in enumerate(self._batch.uids) if row in rows]
        if len(keep) < len(self._batch.uids):
            self._batch.filter(keep)
        for row in rows:
            if row not in self._batch.uids:
                self._batch.extend(self._merged(row))
        assert tuple(self._batch.uids) == rows

    def _merged(self, row: int) -> GenerationBatch:
        """A row as a batch of one, about to feed its next token."""
        token = self._check_solo(row)
        prompt = PromptProcessingBatch(self._tap, [row], [self._rows.pop(row).caches])
        batch = GenerationBatch.empty(self._tap, greedy_sampler)
        batch.uids, batch.prompt_cache, batch.tokens = [row], prompt.prompt_cache, [[]]
        batch.samplers, batch.logits_processors = [None], [[]]
        batch.stop_sequences, batch.max_tokens = [StopSequences()], [1 << 30]
        batch._next_tokens, batch._next_logprobs = mx.array([token]), []
        batch._token_context, batch._num_tokens = [None], [0]
        batch._matchers = [StopSequences().matcher()]
        return batch

    def _check_solo(self, row: int) -> int:
        if not self._solo_logits[row]:
            return -1  # left before its first token
        token = self._rows[row].run(self._tap)
        for ours, theirs in zip(self._solo_logits.pop(row), self._tap.seen, strict=True):
            self.outcome.compare(ours, theirs)
        return token
