"""A row that is to give way while its prompt is read: the prefill cohort alone, its peers scripted."""

from typing import Any

import pytest

from heard import Heard
from motet.actors.pace import Pace
from motet.actors.prefill import Cohort, Outlets
from motet.channels import decode
from motet.channels.admission import Displaced, Kept, Released
from motet.channels.device import Abandon, Abandoned, Chunk, Chunked, PartRead, Snapshot
from motet.channels.emitter import Failed
from motet.channels.gauges import PrefillGauges
from motet.channels.prefill import Admit, Cutoff, Displace, Lease, ToPrefill, Withdraw
from motet.channels.request import Sampling, Work
from motet.channels.store import Put, ReleaseLease, Take

WORK = Work(1, tuple(range(5, 45)), 50, Sampling(), frozenset())
PACE = Pace(0.2, 2048, 0.01, 0.0, 0.001, False, 8, True, True, True, True)
GONE = Abandoned(1, None)
FAILED = Chunked((PartRead(1, error="boom"),), 0.01)
READ = Chunked((PartRead(1, (7,)),), 0.01)


class Bench:
    """A cohort, and what its peers have heard."""

    def __init__(self, generated: tuple[int, ...] = ()) -> None:
        self.admission, self.store, self.device, self.decode = Heard(), Heard(), Heard(), Heard()
        outlets = Outlets(self.admission, self.store, self.device, self.decode)
        self.cohort = Cohort(outlets, PACE, PrefillGauges(), lambda: 0.0)
        self.emitter = Heard()
        self.hear(Admit(WORK, self.emitter, generated))

    def hear(self, *messages: ToPrefill) -> None:
        for message in messages:
            self.cohort.hear(message)

    def reading(self) -> None:
        """The row's only chunk is on its way."""
        self.hear(Lease(1, None, 0))
        self.cohort.go_on()
        assert isinstance(self.device[0], Chunk)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.store if isinstance(message, kind)]


def test_a_row_whose_lease_is_on_its_way_waits_for_it_and_comes_again_without_it() -> None:
    bench = Bench()
    bench.hear(Displace(1))
    assert bench.admission == [] and len(bench.of(Take)) == 1
    bench.hear(Lease(1, 9, 20))
    assert bench.admission == [Displaced(1, ())] and bench.of(ReleaseLease) == [ReleaseLease(1)]
    bench.hear(Admit(WORK, bench.emitter))
    assert len(bench.of(Take)) == 2 and bench.device == []


def test_a_row_that_is_being_read_gives_way_when_the_device_has_dropped_it() -> None:
    bench = Bench(generated=(3, 4))
    bench.reading()
    bench.hear(Displace(1), READ)
    assert bench.device[1:] == [Abandon((1,))] and bench.admission == []
    bench.hear(GONE)
    assert bench.admission == [Displaced(1, (3, 4))] and bench.decode == [] and bench.emitter == []


ENDS: dict[str, tuple[list[ToPrefill], bool]] = {
    # What the cohort hears of a row that is being read, and whether its emitter is told that it failed.
    "withdrawn": ([Displace(1), Withdraw(1), READ, GONE], False),
    "cut off": ([Cutoff(), Displace(1), READ, GONE], True),
    "failed": ([Displace(1), FAILED, GONE], True),
    "withdrawn before": ([Withdraw(1), Displace(1), READ, GONE], False),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_row_that_ends_while_it_gives_way_is_kept(end: str) -> None:
    messages, fails = ENDS[end]
    bench = Bench()
    bench.reading()
    bench.hear(*messages)
    assert sorted(map(repr, bench.admission)) == sorted(map(repr, [Released(1), Kept(1)]))
    assert [type(message) for message in bench.emitter] == [Failed] * fails
    passed_on = [message for message in bench.decode if isinstance(message, decode.Withdraw)]
    assert len(passed_on) == ("withdrawn" in end)


@pytest.mark.parametrize("told", [Withdraw(1), Cutoff()])
def test_a_row_that_ends_before_its_lease_comes_is_kept(told: ToPrefill) -> None:
    bench = Bench()
    bench.hear(Displace(1), told, Lease(1, None, 0))
    assert bench.admission == [Released(1), Kept(1)]


def test_a_row_that_has_joined_is_decodes() -> None:
    bench = Bench()
    bench.reading()
    bench.hear(READ, Displace(1))
    assert bench.decode[1:] == [decode.Displace(1)] and bench.admission == []


def test_the_snapshot_of_a_row_that_left_with_its_last_chunk_names_what_was_drawn_too() -> None:
    """A row that comes again is read and drawn from twice in one command."""
    bench = Bench(generated=(3, 4))
    bench.reading()
    bench.hear(Withdraw(1), Chunked((PartRead(1, (7, 8)),), 0.01))
    bench.hear(Abandoned(1, Snapshot(5, 43, 1, trimmable=True)))
    (put,) = bench.of(Put)
    assert put.tokens == (*WORK.prompt, 3, 4, 7, 8)
