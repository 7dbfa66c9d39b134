"""The admission queue alone: its peers are scripted."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.admission import Admission, Budget, Limits, Outlets, admission
from motet.channels import prefill
from motet.channels.admission import (
    Cutoff,
    Departed,
    Drain,
    Released,
    Submit,
    ToAdmission,
    Withdraw,
)
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.gauges import AdmissionGauges
from motet.channels.request import Sampling, Work
from motet.engine.projection import Activations, Projection

# A row of the tests below is 30 tokens: 512 columns, twice while rewritten: 1,024 bytes.
A_TOKEN = Projection(0, 1, (), 0, 16, Activations(), 0)
ROW = 1024
AMPLE = Budget(1 << 40, 0, A_TOKEN)


class Heard(list[Any]):
    """An outlet that keeps what it is sent."""

    def send_nowait(self, value: Any, /) -> None:
        self.append(value)


def submit(row: int, emitter: Heard) -> Submit:
    return Submit(Work(row, (5, 6, 7), 10, Sampling(), frozenset()), emitter)


class Desk:
    """A queue, and what its peers have heard."""

    def __init__(
        self,
        places: int,
        seats: int = 100,
        waiting: int = 100,
        budget: Budget = AMPLE,
        patience: float = math.inf,
    ) -> None:
        self.prefill, self.store, self.tickets = Heard(), Heard(), Heard()
        self.now = 0.0
        self.emitters: dict[int, Heard] = {}
        self.gauges = AdmissionGauges()
        outlets = Outlets(self.prefill, self.store, self.tickets)
        limits = Limits(places, seats, waiting, patience)
        self.queue = Admission(outlets, limits, budget, self.gauges, lambda: self.now)

    def submit(self, *rows: int) -> None:
        for row in rows:
            self.emitters[row] = Heard()
            self.queue.hear(submit(row, self.emitters[row]))

    def hear(self, *messages: ToAdmission) -> None:
        for message in messages:
            self.queue.hear(message)

    @property
    def admitted(self) -> list[int]:
        return [m.work.row for m in self.prefill if isinstance(m, prefill.Admit)]

    @property
    def withdrawn(self) -> list[int]:
        return [m.row for m in self.prefill if isinstance(m, prefill.Withdraw)]


def test_rows_are_admitted_in_the_order_they_came() -> None:
    desk = Desk(places=2)
    desk.submit(4, 2, 9, 1)
    assert desk.admitted == [4, 2]
    assert (desk.gauges.live_rows, desk.gauges.pending_rows, desk.gauges.submitted_rows) == (2, 2, 4)
    desk.hear(Released(2))
    assert desk.admitted == [4, 2, 9]
    desk.hear(Released(9))
    assert desk.admitted == [4, 2, 9, 1]
    assert all(emitter == [Accepted()] for emitter in desk.emitters.values())
    assert (desk.gauges.live_rows, desk.gauges.pending_rows) == (2, 0)


def test_an_admitted_row_brings_its_work_and_its_emitter() -> None:
    desk, emitter = Desk(places=1), Heard()
    asked = submit(3, emitter)
    desk.hear(asked)
    (admit,) = desk.prefill
    assert admit.work is asked.work and admit.outlet is emitter


def test_a_finished_row_keeps_its_seat_but_not_its_place() -> None:
    desk = Desk(places=1, seats=2)
    desk.submit(1, 2, 3)
    desk.hear(Released(1))  # its caller still reads
    assert desk.admitted == [1, 2]
    desk.hear(Released(2))  # a place is free now, but both seats are held
    assert desk.admitted == [1, 2] and desk.gauges.live_rows == 0
    desk.hear(Withdraw(1), Departed(1))
    assert desk.admitted == [1, 2, 3]


def test_past_the_queues_limit_a_row_is_told_busy_and_its_withdraw_gives_the_ticket_back() -> None:
    desk = Desk(places=1, waiting=1)
    desk.submit(1, 2, 3)
    assert desk.emitters[3] == [Rejected("busy")]
    assert desk.gauges.submitted_rows == 2 and desk.tickets == []
    desk.hear(Withdraw(3))
    assert len(desk.tickets) == 1
    desk.hear(Released(1), Released(2))
    assert desk.admitted == [1, 2] and desk.withdrawn == []


def test_with_no_queue_a_row_is_taken_if_there_is_room_for_it_at_once() -> None:
    desk = Desk(places=1, waiting=0)
    desk.submit(1, 2)
    assert desk.admitted == [1]
    assert desk.emitters[2] == [Rejected("busy")]
    desk.hear(Released(1))
    desk.submit(3)
    assert desk.admitted == [1, 3]


def test_a_row_withdrawn_while_it_waits_never_reaches_prefill() -> None:
    desk = Desk(places=1)
    desk.submit(1, 2, 3)
    desk.hear(Withdraw(2))
    assert len(desk.tickets) == 1 and desk.gauges.pending_rows == 1
    desk.hear(Released(1))
    assert desk.admitted == [1, 3] and desk.withdrawn == []


def test_a_seated_rows_withdraw_is_passed_on_once_and_its_ticket_returns_at_its_departure() -> None:
    desk = Desk(places=2)
    desk.submit(1, 2)
    desk.hear(Withdraw(1))
    assert desk.prefill[2:] == [prefill.Withdraw(1)] and desk.tickets == []
    desk.hear(Released(1))
    assert desk.tickets == []
    desk.hear(Departed(1))
    assert desk.withdrawn == [1] and len(desk.tickets) == 1
    desk.hear(Released(2), Withdraw(2))  # a finished row goes the same way
    assert desk.withdrawn == [1, 2] and len(desk.tickets) == 1
    desk.hear(Departed(2))
    assert len(desk.tickets) == 2


def test_a_withdrawn_row_keeps_its_place_until_the_device_has_dropped_it() -> None:
    desk = Desk(places=1)
    desk.submit(1, 2)
    desk.hear(Withdraw(1))
    assert desk.admitted == [1]
    desk.hear(Released(1))
    assert desk.admitted == [1, 2]


def test_a_cutoff_is_passed_on() -> None:
    desk = Desk(places=1)
    desk.hear(Cutoff())
    assert desk.prefill == [prefill.Cutoff()]


def test_a_drain_fails_what_waits_and_turns_away_what_comes() -> None:
    desk = Desk(places=1)
    desk.submit(1, 2)
    desk.hear(Drain())
    desk.submit(3)
    first, second = desk.emitters[2]
    assert first == Accepted()
    assert isinstance(second, Failed) and second.code == "server_draining"
    assert desk.emitters[3] == [Rejected("draining")]
    assert desk.emitters[1] == [Accepted()]
    desk.hear(Released(1))  # a place is free, but nobody is admitted any more
    assert desk.admitted == [1] and not desk.queue.over
    assert desk.gauges.pending_rows == 0


@pytest.mark.parametrize("last", [Departed(1), Withdraw(2), Withdraw(3)])
def test_a_drain_is_over_when_every_row_has_left_whoever_is_the_last(last: ToAdmission) -> None:
    desk = Desk(places=1)
    desk.submit(1, 2)
    desk.hear(Drain())
    desk.submit(3)
    endings: list[ToAdmission] = [Released(1), Withdraw(1), Departed(1), Withdraw(2), Withdraw(3)]
    for message in [ending for ending in endings if ending != last]:
        desk.hear(message)
        assert not desk.queue.over
    desk.hear(last)
    assert desk.queue.over and len(desk.tickets) == 3


# --- the actor --------------------------------------------------------------------------------


@attrs.frozen
class Running:
    """An actor on its mailbox, with the event of its return."""

    say: trio.MemorySendChannel[ToAdmission]
    prefill: Heard
    over: trio.Event

    def hear(self, *messages: ToAdmission) -> None:
        for message in messages:
            self.say.send_nowait(message)


async def with_actor(body: Callable[[Running], Awaitable[None]], patience: float = math.inf) -> None:
    say, inbox = trio.open_memory_channel[ToAdmission](20)
    running = Running(say, Heard(), trio.Event())

    async def act() -> None:
        outlets = Outlets(running.prefill, Heard(), Heard())
        await admission(inbox, outlets, Limits(1, 4, 4, patience), AMPLE, AdmissionGauges())
        running.over.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            await body(running)
            await running.over.wait()


async def test_an_empty_house_drains_at_once() -> None:
    async def body(running: Running) -> None:
        running.hear(Drain())

    await with_actor(body)


async def test_the_actor_leaves_after_the_last_departure_and_tells_prefill_last_of_all() -> None:
    async def body(running: Running) -> None:
        running.hear(submit(1, Heard()), submit(2, Heard()), Drain(), Withdraw(2), Withdraw(1), Released(1))
        await wait_all_tasks_blocked()
        assert not running.over.is_set()
        assert [type(m) for m in running.prefill] == [prefill.Admit, prefill.Withdraw]
        running.hear(Departed(1))
        await running.over.wait()
        assert [type(m) for m in running.prefill] == [prefill.Admit, prefill.Withdraw, prefill.Closing]

    await with_actor(body)


async def test_the_actor_waits_for_the_withdraw_of_a_row_that_was_turned_away() -> None:
    async def body(running: Running) -> None:
        emitter = Heard()
        running.hear(submit(1, Heard()), Drain(), submit(2, emitter))
        running.hear(Withdraw(1), Released(1), Departed(1))
        await wait_all_tasks_blocked()
        assert emitter == [Rejected("draining")] and not running.over.is_set()
        running.hear(Withdraw(2))
        await running.over.wait()
        assert running.prefill[-1] == prefill.Closing()

    await with_actor(body)
