"""Whatever chunks, cohorts and joins a row meets, it says what it says alone.

The oracle compares with mlx-lm's batch on the same schedule, which cannot show a fault that both share: so
these schedules, drawn at random, are held to the row alone.
"""

import random

import pytest

import families
from motet.actors.executor import Executor
from motet.actors.faults import StepError
from motet.channels.device import Chunk, Chunked, Join, Opening, Part
from motet.channels.request import Sampling, Work
from motet.engine import selftest
from motet.engine.model import Model

LENGTHS = (2, 3, 5, 9, 11, 17, 23, 25, 30, 40)  # a window of the tiny families has 16 tokens
TOKENS = 14


class Schedule:
    """Rows that are read and joined as a draw decides."""

    def __init__(
        self, model: Model, firsts_apart: bool, prompts: list[list[int]], draw: random.Random
    ) -> None:
        self._executor = Executor(model, snapshots=False, firsts_apart=firsts_apart)
        self._prompts = prompts
        self._draw = draw
        self._read = [0] * len(prompts)
        self._opened: set[int] = set()
        self._waiting = list(range(len(prompts)))
        self._preparing: list[int] = []
        self._ready: list[int] = []
        self.told: list[list[int]] = [[] for _ in prompts]

    def run(self) -> list[list[int]]:
        """Go on until each row has said enough."""
        while min(map(len, self.told)) < TOKENS:
            chance = self._draw.random()
            if self._waiting and chance < 0.3:
                self._preparing.append(self._waiting.pop(self._draw.randrange(len(self._waiting))))
            elif self._preparing and chance < 0.8:
                self._chunk()
            elif self._ready and chance < 0.9:
                rows = tuple(self._ready)
                self._ready.clear()
                while self._executor.execute(Join(rows)) is None:
                    pass
            elif self._executor.width:
                self._step()
        return [tokens[:TOKENS] for tokens in self.told]

    def _chunk(self) -> None:
        rows = self._draw.sample(self._preparing, self._draw.randint(1, len(self._preparing)))
        most = min(len(self._prompts[row]) - self._read[row] - 1 for row in rows)
        count = self._draw.choice((most, min(most, 4), min(most, 1)))
        parts = tuple(self._part(row, count) for row in rows)
        results = self._executor.execute(Chunk(parts))
        assert results is not None and isinstance(results[0], Chunked)
        for read in results[0].parts:
            assert read.error is None, read.error
            if read.tokens:
                self.told[read.row] += read.tokens
                self._preparing.remove(read.row)
                self._ready.append(read.row)

    def _part(self, row: int, count: int) -> Part:
        prompt, read = self._prompts[row], self._read[row]
        opening = None
        if row not in self._opened:
            self._opened.add(row)
            opening = Opening(Work(row, tuple(prompt), 100, Sampling(), frozenset()), None, 0)
        last = read + count == len(prompt) - 1
        self._read[row] += count + last
        return Part(row, tuple(prompt[read : read + count + last]), last, opening)

    def _step(self) -> None:
        for advance in (self._executor.step, self._executor.settle):
            told = advance()
            assert not isinstance(told, StepError), told
            for row in told:
                self.told[row.row] += row.tokens


@pytest.mark.parametrize("trials", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", families.BATCHED)
def test_a_row_says_what_it_says_alone(family: str, trials: int) -> None:
    model, _ = families.loader(family)()
    apart = selftest.run(model, 3).fresh is not None
    draw = random.Random(trials)
    for trial in range(trials):
        prompts = families.prompts(tuple(draw.choice(LENGTHS) for _ in range(4)), seed=trial)
        alone = [Schedule(model, apart, [prompt], random.Random(0)).run()[0] for prompt in prompts]
        assert Schedule(model, apart, prompts, draw).run() == alone, (trial, list(map(len, prompts)))


def test_a_first_token_that_is_read_otherwise_is_found_at_load() -> None:
    """recurrent_gemma scales a first token otherwise, and takes every row of a batch for new or none."""
    found = [f for f in families.BATCHED if selftest.run(families.loader(f)()[0], 3).fresh is not None]
    assert found == ["recurrent_gemma"]
