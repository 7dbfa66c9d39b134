"""The admission queue alone: its peers are scripted."""

import math
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from heard import Heard
from motet.actors.admission import Admission, Budget, Limits, Outlets, admission
from motet.channels import prefill, store
from motet.channels.admission import (
    Cutoff,
    Departed,
    Drain,
    Released,
    Submit,
    ToAdmission,
    Trimmed,
    Withdraw,
)
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.gauges import AdmissionGauges
from motet.channels.request import Priority, Sampling, Work
from motet.engine.projection import Activations, Projection

# A row of the tests below is 30 tokens: 512 columns, twice while rewritten: 1,024 bytes.
A_TOKEN = Projection(0, 1, (), 0, 16, Activations(), 0, keeps=False)
ROW = 1024
AMPLE = Budget(1 << 40, 0, A_TOKEN)


def submit(
    row: int, emitter: Heard, prompt: int = 20, client: str = "", priority: Priority = "interactive"
) -> Submit:
    work = Work(row, (5,) * prompt, 10, Sampling(), frozenset(), client=client, priority=priority)
    return Submit(work, emitter)


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
        self.prefill, self.store, self.tickets, self.resuming = Heard(), Heard(), Heard(), Heard()
        self.now = 0.0
        self.emitters: dict[int, Heard] = {}
        self.gauges = AdmissionGauges()
        outlets = Outlets(self.prefill, self.store, self.tickets, self.resuming)
        limits = Limits(places, seats, waiting, patience)
        self.queue = Admission(outlets, limits, budget, self.gauges, lambda: self.now)

    def submit(
        self, *rows: int, prompt: int = 20, client: str = "", priority: Priority = "interactive"
    ) -> None:
        for row in rows:
            self.emitters[row] = Heard()
            self.queue.hear(submit(row, self.emitters[row], prompt, client, priority))

    def background(self, *rows: int, prompt: int = 20) -> None:
        self.submit(*rows, prompt=prompt, priority="background")

    def hear(self, *messages: ToAdmission) -> None:
        for message in messages:
            self.queue.hear(message)

    @property
    def admitted(self) -> list[int]:
        return [m.work.row for m in self.prefill if isinstance(m, prefill.Admit)]

    @property
    def withdrawn(self) -> list[int]:
        return [m.row for m in self.prefill if isinstance(m, prefill.Withdraw)]

    @property
    def displaced(self) -> list[int]:
        return [m.row for m in self.prefill if isinstance(m, prefill.Displace)]


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


# --- the budget -------------------------------------------------------------------------------


def test_a_row_waits_until_the_bytes_of_all_live_rows_fit_the_budget_with_it() -> None:
    desk = Desk(places=9, budget=Budget(2 * ROW, 0, A_TOKEN))
    desk.submit(1, 2, 3, 4)
    assert desk.admitted == [1, 2] and desk.gauges.kv_projected_bytes == 2 * ROW
    desk.hear(Released(1))
    assert desk.admitted == [1, 2, 3]
    desk.hear(Released(2), Released(3), Released(4))
    assert desk.admitted == [1, 2, 3, 4] and desk.gauges.kv_projected_bytes == 0
    assert desk.store == []  # there is no prompt cache to ask


def test_a_long_row_makes_every_row_beside_it_as_wide() -> None:
    desk = Desk(places=9, budget=Budget(5 * ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.submit(2, prompt=1000)  # 1,024 columns and a granule
    assert desk.gauges.kv_projected_bytes == 2 * 2 * (1024 + 256) == 5 * ROW
    desk.submit(3)  # alone it would need little; beside the long one it does not fit
    assert desk.admitted == [1, 2]
    desk.hear(Released(2))
    assert desk.admitted == [1, 2, 3] and desk.gauges.kv_projected_bytes == 2 * ROW


def test_nobody_passes_the_row_that_waits_for_room() -> None:
    desk = Desk(places=9, budget=Budget(3 * ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.submit(2, prompt=1000)
    desk.submit(3, 4)  # they would fit
    assert desk.admitted == [1]
    desk.hear(Released(1))
    assert desk.admitted == [1, 2]
    desk.hear(Released(2))
    assert desk.admitted == [1, 2, 3, 4]


def test_when_the_row_that_waits_for_room_is_withdrawn_the_next_are_admitted() -> None:
    desk = Desk(places=9, budget=Budget(3 * ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.submit(2, prompt=1000)
    desk.submit(3)
    desk.hear(Withdraw(2))
    assert desk.admitted == [1, 3]


def test_with_a_full_queue_a_row_that_does_not_fit_the_budget_is_told_busy() -> None:
    desk = Desk(places=9, waiting=0, budget=Budget(ROW, 0, A_TOKEN))
    desk.submit(1, 2)
    assert desk.admitted == [1] and desk.emitters[2] == [Rejected("busy")]


# --- the prompt cache gives way ---------------------------------------------------------------

SHARED = Budget(4 * ROW, 2 * ROW, A_TOKEN)


def asked(desk: Desk) -> list[int]:
    return [trim.allowed for trim in desk.store]


def test_rows_that_fit_beside_a_full_prompt_cache_are_admitted_at_once() -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2)
    assert desk.admitted == [1, 2] and desk.store == []


def test_a_row_that_needs_the_prompt_caches_room_is_admitted_when_the_store_has_made_it() -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2, 3)
    assert desk.admitted == [1, 2] and desk.store == [store.Trim(ROW)]
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2, 3]
    desk.submit(4)
    assert desk.admitted == [1, 2, 3] and asked(desk) == [ROW, 0]
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2, 3, 4]


def test_one_question_is_out_at_a_time() -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2, 3)
    desk.hear(Released(1), Released(2))  # now the third fits without
    assert desk.admitted == [1, 2, 3] and asked(desk) == [ROW]
    desk.hear(Trimmed())  # and the store may have back what it gave
    assert asked(desk) == [ROW, 2 * ROW]


def test_what_rows_leave_is_offered_to_the_prompt_cache_and_must_be_asked_back() -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2, 3)
    desk.hear(Trimmed(), Released(1))
    assert asked(desk) == [ROW, 2 * ROW]
    desk.submit(4)  # before the answer: the store may hold more already
    assert desk.admitted == [1, 2, 3] and asked(desk) == [ROW, 2 * ROW]
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2, 3] and asked(desk) == [ROW, 2 * ROW, ROW]
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2, 3, 4]


def test_a_row_withdrawn_while_the_store_is_asked_is_forgotten_and_the_store_gets_its_room_back() -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2, 3)
    desk.hear(Withdraw(3))
    assert len(desk.tickets) == 1
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2] and asked(desk) == [ROW, 2 * ROW]
    desk.hear(Trimmed())
    assert asked(desk) == [ROW, 2 * ROW]


@pytest.mark.parametrize("answered", [True, False])
def test_a_drain_while_the_store_is_asked_does_not_wait_for_its_answer(answered: bool) -> None:
    desk = Desk(places=9, budget=SHARED)
    desk.submit(1, 2, 3)
    desk.hear(Drain())
    assert desk.emitters[3][-1] == Failed("server_draining", "the server is shutting down")
    if answered:
        desk.hear(Trimmed())
    endings: list[ToAdmission] = [Withdraw(3)]
    for row in (1, 2):
        endings += [Withdraw(row), Released(row), Departed(row)]
    desk.hear(*endings)
    assert desk.queue.over and desk.admitted == [1, 2] and desk.gauges.kv_projected_bytes == 0


# --- the queue's patience ---------------------------------------------------------------------


def test_a_row_that_has_waited_too_long_is_told_and_stays_until_its_withdraw() -> None:
    desk = Desk(places=1, patience=5)
    desk.submit(1)
    assert desk.queue.deadline == math.inf  # nobody waits
    desk.now = 1.0
    desk.submit(2)
    desk.now = 2.0
    desk.submit(3)
    assert desk.queue.deadline == 6.0
    desk.now = 6.5
    desk.queue.expire()
    assert desk.emitters[2][1:] == [Failed("queue_timeout", "waited 5 s for its turn")]
    assert desk.emitters[3] == [Accepted()] and desk.queue.deadline == 7.0
    assert desk.tickets == [] and desk.gauges.pending_rows == 1
    desk.hear(Released(1))
    assert desk.admitted == [1, 3]
    desk.hear(Withdraw(2))
    assert len(desk.tickets) == 1 and desk.withdrawn == []


def test_when_the_first_gives_up_the_next_may_fit() -> None:
    desk = Desk(places=9, patience=5, budget=Budget(3 * ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.submit(2, prompt=1000)
    desk.now = 1.0
    desk.submit(3)
    desk.now = 5.0
    desk.queue.expire()
    assert desk.admitted == [1, 3]


def test_a_row_whose_time_is_over_while_the_store_is_asked_is_not_admitted_by_the_answer() -> None:
    desk = Desk(places=9, patience=5, budget=SHARED)
    desk.submit(1, 2, 3)
    desk.now = 5.0
    desk.queue.expire()
    desk.hear(Trimmed())
    assert desk.admitted == [1, 2] and desk.emitters[3][-1].code == "queue_timeout"


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
        outlets = Outlets(running.prefill, Heard(), Heard(), Heard())
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


async def test_the_actor_wakes_for_the_row_that_has_waited_too_long(autojump_clock: MockClock) -> None:
    async def body(running: Running) -> None:
        emitter = Heard()
        began = trio.current_time()
        running.hear(submit(1, Heard()), submit(2, emitter))
        while len(emitter) < 2:
            await trio.sleep(0.5)
        assert emitter == [Accepted(), Failed("queue_timeout", "waited 5 s for its turn")]
        assert trio.current_time() - began == pytest.approx(5, abs=0.5)
        running.hear(Withdraw(2), Drain(), Withdraw(1), Released(1), Departed(1))

    await with_actor(body, patience=5)
