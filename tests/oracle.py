"""The oracle: what a device did, done again by mlx-lm's own code.

A trace is the device's command log with the logits it saw. The replay feeds mlx-lm the same chunks, joins and
retirements: ``generate_step`` over its own solo caches for a row until it is merged, ``GenerationBatch`` from
then on. Tokens are mlx-lm's own; logits are tapped off the model that it calls.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch, StopSequences, generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler

from motet.channels.device import Abandon, Chunk, Command, Part


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
    """Replays a trace on a model; ``outcome`` has the count of vectors that differ.

    With ``firsts_apart`` rows that hold nothing are fed apart from others, as the device does it where
    mlx-lm's batch reads first tokens wrong beside others (recurrent_gemma).
    """

    def __init__(self, model: nn.Module, *, firsts_apart: bool = False) -> None:
        self._model = model
        self._firsts_apart = firsts_apart
        self._tap = Tap(model)
        self._solo: dict[int, Solo] = {}
        self._solo_logits: dict[int, list[np.ndarray]] = {}
        self._prompts: list[PromptProcessingBatch] = []  # cohorts being read
        self._ready: list[GenerationBatch] = []  # cohorts with their first tokens
        self._begun: dict[tuple[int, ...], mx.array] = {}  # their first logits, until they are compared
        self._fed: set[int] = set()  # rows that hold tokens
        self._batch: GenerationBatch | None = None
        self.outcome = Outcome()

    def run(self, trace: Trace) -> Outcome:
        for event in trace.events:
            match event:
                case Chunk(parts):
                    self._chunk(parts)
                case Abandon(rows):
                    self._abandon(rows)
                case (rows, logits):
                    self._forward(rows, logits)
        for row in list(self._solo_logits):
            self._check_solo(row)
        return self.outcome

    # --- prompts ---

    def _chunk(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if part.opening is not None:
                assert part.opening.snapshot is None, "the oracle replays cold runs"
                self._solo[part.row] = Solo(make_prompt_cache(self._model), -1)
        read = [part for group in self._groups(parts) for part in self._read(group)]
        for group in self._groups([part for part in read if part.last]):
            self._begin(group)

    def _groups(self, parts: Sequence[Part]) -> list[Sequence[Part]]:
        """What goes through the model together: apart, where first tokens must be, rows that hold nothing."""
        fresh = [part for part in parts if self._firsts_apart and part.row not in self._fed]
        others = [part for part in parts if part not in fresh]
        return [group for group in (fresh, others) if group]

    def _together(self, parts: Sequence[Part]) -> PromptProcessingBatch | None:
        """The cohort of exactly these rows. Rows that are together already stay in their order."""
        return next((p for p in self._prompts if set(p.uids) == {part.row for part in parts}), None)

    def _read(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Read the parts in one forward; they come back in their rows' order."""
        cohort = self._together(parts)
        if cohort is None and len(parts) == 1:
            self._read_alone(parts[0])
            return parts
        if cohort is None:
            caches = [self._parted(part.row) for part in parts]
            cohort = self._cohort([part.row for part in parts], caches)
            self._prompts.append(cohort)
        parts = _ordered(parts, cohort)
        if any(part.reading for part in parts):
            cohort.prompt([list(part.reading) for part in parts])
            self._fed.update(part.row for part in parts)
        return parts

    def _cohort(self, rows: list[int], caches: list[list[Any]]) -> PromptProcessingBatch:
        several = len(rows)
        return PromptProcessingBatch(
            self._tap,
            list(rows),
            caches,
            samplers=[None] * several,
            logits_processors=[[]] * several,
            max_tokens=[1 << 30] * several,
            tokens=[[] for _ in rows],
        )

    def _abandon(self, rows: tuple[int, ...]) -> None:
        for row in rows:
            self._solo.pop(row, None)
            self._solo_logits.pop(row, None)
            for cohort in [p for p in self._prompts if row in p.uids]:
                cohort.filter([i for i, other in enumerate(cohort.uids) if other != row])
                if not cohort.uids:
                    self._prompts.remove(cohort)

    def _parted(self, row: int) -> list[Any]:
        """A row's caches as a lone row's, taken out of the cohort it was in."""
        if row in self._solo:
            return self._solo.pop(row).caches
        cohort = next(p for p in self._prompts if row in p.uids)
        caches = cohort.extract_cache(cohort.uids.index(row))
        cohort.filter([i for i, other in enumerate(cohort.uids) if other != row])
        if not cohort.uids:
            self._prompts.remove(cohort)
        return caches

    def _read_alone(self, part: Part) -> None:
        if part.row not in self._solo:
            self._solo[part.row] = Solo(self._parted(part.row), -1)
        row = self._solo[part.row]
        if part.reading:
            self._model(mx.array([part.reading]), cache=row.caches)
            mx.eval([cache.state for cache in row.caches])
            self._fed.add(part.row)
        row.last = part.tokens[-1]

    def _begin(self, parts: Sequence[Part]) -> None:
        """mlx-lm's step from a prompt batch to a generation batch, whose first forward is this one's."""
        self._fed.update(part.row for part in parts)
        first = parts[0]
        if len(parts) == 1 and first.row in self._solo:
            self._solo_logits[first.row] = []
            return
        cohort = self._together(parts)
        if cohort is not None:
            self._prompts.remove(cohort)
        elif len(parts) == 1:
            self._solo[first.row] = Solo(self._parted(first.row), first.tokens[-1])
            self._solo_logits[first.row] = []
            return
        else:
            caches = [self._parted(part.row) for part in parts]
            cohort = self._cohort([part.row for part in parts], caches)
        self._tap.seen.clear()
        begun = cohort.generate([[part.tokens[-1]] for part in _ordered(parts, cohort)])
        self._ready.append(begun)
        self._begun[tuple(begun.uids)] = self._tap.seen.pop()

    # --- forwards ---

    def _forward(self, rows: tuple[int, ...], logits: np.ndarray) -> None:
        self.outcome.widths.add(len(rows))
        if len(rows) == 1 and self._solo_logits.get(rows[0]) == []:
            self._solo_logits[rows[0]].append(logits)  # the prompt's last token, alone
            return
        if rows in self._begun:
            self.outcome.compare(logits, self._begun.pop(rows))  # a cohort's last tokens
            return
        self._group_to(rows)
        if self._batch is None:
            self._solo[rows[0]].forwards += 1
            self._solo_logits[rows[0]].append(logits)
            return
        self._tap.seen.clear()
        self._batch._step()
        self.outcome.compare(logits, self._tap.seen.pop())

    def _group_to(self, rows: tuple[int, ...]) -> None:
        """Bring mlx-lm's batch to these rows: retire those that ended, extend by those that joined."""
        if self._batch is not None and not set(self._batch.uids) & set(rows):
            self._batch = None  # it had emptied
        if self._batch is None:
            if len(rows) == 1 and rows[0] in self._solo:
                return
            self._batch = self._joining(rows[0])
        self._keep(self._batch, rows)
        for row in rows:
            if row not in self._batch.uids:
                joining = self._joining(row)
                self._keep(joining, rows)
                self._batch.extend(joining)
        assert tuple(self._batch.uids) == rows

    def _keep(self, batch: GenerationBatch, rows: tuple[int, ...]) -> None:
        keep = [i for i, row in enumerate(batch.uids) if row in rows]
        if len(keep) < len(batch.uids):
            batch.filter(keep)

    def _joining(self, row: int) -> GenerationBatch:
        """The batch that brings a row: its cohort's, or a lone row's own, about to feed its next token."""
        for ready in self._ready:
            if row in ready.uids:
                self._ready.remove(ready)
                return ready
        token = self._check_solo(row)
        prompt = self._cohort([row], [self._solo.pop(row).caches])
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
        token = self._solo[row].run(self._tap)
        for ours, theirs in zip(self._solo_logits.pop(row), self._tap.seen, strict=True):
            self.outcome.compare(ours, theirs)
        self._tap.seen.clear()
        return token


def _ordered(parts: Sequence[Part], cohort: PromptProcessingBatch) -> Sequence[Part]:
    by_row = {part.row: part for part in parts}
    return [by_row[row] for row in cohort.uids]
