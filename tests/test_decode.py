"""The decode stepper alone: its peers are scripted."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from heard import Heard
from motet.actors.decode import GRANT, Outlets, Stepper, decode
from motet.channels import device, prefill
from motet.channels import store as stores
from motet.channels.admission import Departed, Displaced, Kept, Released
from motet.channels.decode import Closing, Cutoff, Displace, Join, Prepared, Stop, ToDecode, Withdraw
from motet.channels.device import Drop, Dropped, JoinFault, RowTokens, Snapshot, Step, StepFault, Stepped
from motet.channels.emitter import Failed, Finish, Tokens
from motet.channels.gauges import DecodeGauges
from motet.channels.request import Sampling, Work


class Bench:
    """A stepper, and what its peers have heard."""

    def __init__(self) -> None:
        self.now = 0.0
        self.admission, self.prefill, self.store, self.device = Heard(), Heard(), Heard(), Heard()
        self.emitters: dict[int, Heard] = {}
        self.gauges = DecodeGauges()
        outlets = Outlets(self.admission, self.prefill, self.store, self.device)
        self.stepper = Stepper(outlets, self.gauges, lambda: self.now)

    def join(self, *rows: int, finish: Finish | None = None) -> None:
        """Each with a prompt of its number three times, and 100 times its number as the first token."""
        for row in rows:
            self.emitters[row] = Heard()
            work = Work(row, (row,) * 3, 50, Sampling(), frozenset())
            self.stepper.hear(Join((Prepared(work, self.emitters[row], (100 * row,), finish),)))

    def hear(self, *messages: ToDecode) -> None:
        for message in messages:
            self.stepper.hear(message)

    @property
    def dropped(self) -> list[tuple[int, ...]]:
        return [m.rows for m in self.device if isinstance(m, Drop)]

    @property
    def granted(self) -> list[int]:
        return [m.count for m in self.device if isinstance(m, Step)]


def stepped(*rows: RowTokens, steps: int = 1) -> Stepped:
    return Stepped(rows, steps)


def snapshot(length: int) -> Snapshot:
    return Snapshot(handle=9, length=length, nbytes=1, trimmable=True)


def faulted(*rows: int) -> StepFault:
    return StepFault(rows, 1, "boom")


# --- joining ----------------------------------------------------------------------------------


def test_a_joined_rows_first_token_is_told_at_once() -> None:
    bench = Bench()
    bench.join(1)
    assert bench.emitters[1] == [Tokens((100,), None)]
    assert bench.device[0] == device.Join((1,))
    assert (bench.gauges.active_rows, bench.gauges.tokens) == (1, 1)


def test_a_row_that_ended_with_its_first_token_never_joins_the_device() -> None:
    bench = Bench()
    bench.join(1, finish="length")
    assert bench.emitters[1] == [Tokens((100,), "length")]
    assert bench.device == [] and bench.admission == [Released(1)]
    assert bench.gauges.active_rows == 0
    bench.hear(Withdraw(1))
    assert bench.admission == [Released(1), Departed(1)] and bench.device == []


def test_a_rows_tokens_go_to_its_own_emitter() -> None:
    bench = Bench()
    bench.join(1, 2)
    bench.hear(stepped(RowTokens(2, (21, 22)), RowTokens(1, (11,), "stop")))
    assert bench.emitters[1][1:] == [Tokens((11,), "stop")]
    assert bench.emitters[2][1:] == [Tokens((21, 22), None)]
    assert bench.gauges.tokens == 5


# --- grants -----------------------------------------------------------------------------------


def test_grants_are_topped_up_when_half_is_used() -> None:
    bench = Bench()
    bench.join(1)
    assert bench.granted == [GRANT]
    bench.hear(stepped(RowTokens(1, (1,) * 15), steps=GRANT // 2 - 1))
    assert bench.granted == [GRANT]  # one more than half is left
    bench.hear(stepped(RowTokens(1, (1,))))
    assert bench.granted == [GRANT, GRANT // 2]
    bench.join(2)
    assert bench.granted == [GRANT, GRANT // 2]


def test_nothing_is_granted_while_no_row_runs_and_what_was_left_counts_later() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(stepped(RowTokens(1, (5,), "length"), steps=20))
    assert bench.granted == [GRANT]
    bench.join(2)
    assert bench.granted == [GRANT, 20]


@given(st.lists(st.integers(0, GRANT), max_size=40), st.sets(st.integers(0, 40)))
def test_the_device_is_never_granted_too_much_and_never_runs_dry(uses: list[int], faults: set[int]) -> None:
    bench, used = Bench(), 0
    for i, use in enumerate(uses):
        bench.now += 31  # faults this far apart are forgiven
        bench.join(i)
        ahead = sum(bench.granted) - used
        assert GRANT // 2 < ahead <= GRANT
        used += min(use, ahead)
        if i in faults:
            bench.hear(StepFault((i,), min(use, ahead), "boom"))
        else:
            bench.hear(stepped(steps=min(use, ahead)))
        assert sum(bench.granted) - used <= GRANT


# --- leaving ----------------------------------------------------------------------------------


def test_a_stop_drops_the_row_once_and_what_it_still_gives_is_not_told_but_is_stored() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(stepped(RowTokens(1, (11,))), Stop(1), Stop(1), stepped(RowTokens(1, (12, 13))), Withdraw(1))
    assert bench.dropped == [(1,)]
    assert bench.emitters[1] == [Tokens((100,), None), Tokens((11,), None)]
    assert bench.admission == []  # the device still has its arrays
    bench.hear(Dropped(1, snapshot(7)))
    (put,) = bench.store
    assert put.tokens[: put.snapshot.length] == (1, 1, 1, 100, 11, 12, 13)
    assert bench.admission == [Released(1), Departed(1)]


def test_a_put_names_the_tokens_that_the_snapshot_holds() -> None:
    """The last token drawn was never fed: a row that ends holds one less than it has said."""
    bench = Bench()
    bench.join(1)
    bench.hear(stepped(RowTokens(1, (11,))), stepped(RowTokens(1, (12,), "length", snapshot(5))))
    (put,) = bench.store
    assert put.snapshot == snapshot(5)
    assert put.tokens[:5] == (1, 1, 1, 100, 11)


def test_a_finish_that_crosses_a_drop_releases_the_row_once() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(Stop(1), stepped(RowTokens(1, (11,), "length", snapshot(4))))
    assert bench.admission == [Released(1)] and len(bench.store) == 1
    bench.hear(Dropped(1, None))
    assert bench.admission == [Released(1)] and len(bench.store) == 1
    assert bench.emitters[1] == [Tokens((100,), None)]


LAST = stepped(RowTokens(1, (11,), "length"))
LEAVINGS: dict[str, list[ToDecode]] = {
    "withdrawn while it runs": [Withdraw(1), Dropped(1, None)],
    "withdrawn, and finished before the drop": [Withdraw(1), LAST, Dropped(1, None)],
    "withdrawn after its finish": [LAST, Withdraw(1)],
    "stopped too late, then withdrawn": [LAST, Stop(1), Withdraw(1)],
    "stopped, then withdrawn": [Stop(1), Withdraw(1), Dropped(1, None)],
    "stopped and gone, then withdrawn": [Stop(1), Dropped(1, None), Withdraw(1)],
    "withdrawn, then in a failed step": [Withdraw(1), faulted(1), Dropped(1, None)],
    "withdrawn, then not joined": [Withdraw(1), JoinFault((1,), "boom"), Dropped(1, None)],
    "not joined, then withdrawn": [JoinFault((1,), "boom"), Withdraw(1)],
    "cut off, then withdrawn": [Cutoff(), Withdraw(1), Dropped(1, None)],
    "withdrawn, then cut off": [Withdraw(1), Cutoff(), Dropped(1, None)],
}


@pytest.mark.parametrize("way", LEAVINGS)
def test_however_a_row_leaves_it_is_released_once_and_then_departs_once(way: str) -> None:
    bench = Bench()
    bench.join(1, 2)
    bench.hear(*LEAVINGS[way])
    assert [m for m in bench.admission if m.row == 1] == [Released(1), Departed(1)]
    assert bench.store == []  # no snapshot was made
    assert sum(row == 1 for rows in bench.dropped for row in rows) <= 1


def test_the_withdraw_of_a_row_that_never_came_here_only_departs() -> None:
    bench = Bench()
    bench.hear(Withdraw(5))
    assert bench.admission == [Departed(5)] and bench.device == []


# --- faults -----------------------------------------------------------------------------------


def test_a_row_that_cannot_join_fails_alone() -> None:
    bench = Bench()
    bench.join(1, 2)
    bench.hear(JoinFault((2,), "boom"), stepped(RowTokens(1, (11,))))
    assert bench.emitters[2][1:] == [Failed("join_failed", "boom")]
    assert bench.emitters[1][1:] == [Tokens((11,), None)]
    assert bench.admission == [Released(2)] and bench.gauges.active_rows == 1


def test_a_cutoff_fails_what_runs_and_drops_it_all() -> None:
    bench = Bench()
    bench.join(1, 2, 3)
    bench.hear(Stop(2), Cutoff(), stepped(RowTokens(1, (11,)), RowTokens(3, (31,))))
    for row in (1, 3):
        _, ending = bench.emitters[row]
        assert isinstance(ending, Failed) and ending.code == "server_shutdown"
    assert bench.emitters[2] == [Tokens((200,), None)]  # its own Stop had ended it
    assert bench.dropped == [(2,), (1, 3)]


# --- the actor --------------------------------------------------------------------------------


async def test_the_actor_leaves_at_closing_and_tells_the_store() -> None:
    say, inbox = trio.open_memory_channel[ToDecode](10)
    to_store = Heard()
    say.send_nowait(Closing())
    with trio.fail_after(10):
        await decode(inbox, Outlets(Heard(), Heard(), to_store, Heard()), DecodeGauges())
    assert to_store == [stores.Closing()]


# --- giving way -------------------------------------------------------------------------------


def test_a_displaced_row_is_told_what_was_on_its_way_and_goes_on_when_it_comes_again() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(Displace(1), stepped(RowTokens(1, (11,))), Dropped(1, snapshot(4)))
    assert bench.dropped == [(1,)] and bench.admission == [Displaced(1, (100, 11))]
    (put,) = bench.store
    assert put.tokens == (1, 1, 1, 100, 11)  # the last has not been read yet
    assert bench.gauges.active_rows == 0
    work = Work(1, (1,) * 3, 50, Sampling(), frozenset())
    bench.hear(Join((Prepared(work, bench.emitters[1], (12, 13), None),)), stepped(RowTokens(1, (14,))))
    assert bench.emitters[1] == [Tokens(tokens, None) for tokens in ((100,), (11,), (12, 13), (14,))]
    bench.hear(Displace(1), Dropped(1, None))
    assert bench.admission[1:] == [Displaced(1, (100, 11, 12, 13, 14))]


GIVING_WAY: dict[str, list[ToDecode]] = {
    # What decode hears of a row that runs. Whatever it is, admission is answered once; the row leaves once.
    "ends first": [Displace(1), stepped(RowTokens(1, (11,), "length")), Dropped(1, None), Withdraw(1)],
    "ended before": [stepped(RowTokens(1, (11,), "length")), Displace(1), Withdraw(1)],
    "stops meanwhile": [Displace(1), Stop(1), stepped(RowTokens(1, (11,))), Dropped(1, None), Withdraw(1)],
    "stopped before": [Stop(1), Displace(1), Dropped(1, None), Withdraw(1)],
    "withdrawn meanwhile": [Displace(1), Withdraw(1), Dropped(1, None)],
    "cut off before": [Cutoff(), Displace(1), Dropped(1, None), Withdraw(1)],
}


@pytest.mark.parametrize("way", GIVING_WAY)
def test_a_row_that_ends_while_it_gives_way_is_kept_and_departs_once(way: str) -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(*GIVING_WAY[way])
    assert sorted(map(repr, bench.admission)) == sorted(map(repr, [Kept(1), Released(1), Departed(1)]))
    assert bench.admission.index(Released(1)) < bench.admission.index(Departed(1))
    assert bench.admission.index(Kept(1)) < bench.admission.index(Departed(1))
    assert bench.emitters[1].count(Tokens((11,), None)) == 0 and bench.prefill == []


@pytest.mark.parametrize("fault", [faulted(1), JoinFault((1,), "boom")])
def test_a_fault_of_a_row_that_gives_way_costs_it_nothing(fault: ToDecode) -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(Displace(1), fault, Dropped(1, None))
    assert bench.admission == [Displaced(1, (100,))] and bench.prefill == []
    assert bench.emitters[1] == [Tokens((100,), None)]


def test_a_row_that_is_being_recovered_does_not_give_way() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(faulted(1), Displace(1))
    assert bench.admission == [Kept(1)]


def test_a_displaced_row_that_was_stopped_meanwhile_is_dropped_when_it_comes() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(Displace(1), Dropped(1, None), Stop(1))
    work = Work(1, (1,) * 3, 50, Sampling(), frozenset())
    bench.hear(Join((Prepared(work, bench.emitters[1], (12,), None),)), Dropped(1, None), Withdraw(1))
    assert bench.dropped == [(1,), (1,)] and bench.emitters[1] == [Tokens((100,), None)]
    assert bench.admission == [Displaced(1, (100,)), Released(1), Departed(1)]


def test_the_withdraw_of_a_displaced_row_ends_here_when_prefill_has_sent_it_again() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(Displace(1), Dropped(1, None), Withdraw(1))
    assert bench.prefill == [prefill.Abandon(1)]
    bench.hear(Withdraw(1))
    assert bench.admission == [Displaced(1, (100,)), Departed(1)]
