"""Fairness: turns between clients, interactive before background, the reserved place, rows that give way."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.admission import Budget
from motet.actors.fairness import BACKGROUND_EVERY, FairQueue
from motet.actors.places import MOST_DISPLACED
from motet.channels.admission import Cutoff, Departed, Displaced, Drain, Kept, Released, ToAdmission, Withdraw
from motet.channels.emitter import Accepted, Failed, Rejected
from motet.channels.request import Priority
from test_admission import A_TOKEN, ROW, Desk

# --- the queue alone --------------------------------------------------------------------------


@attrs.frozen
class Item:
    row: int
    client: str = ""
    priority: Priority = "interactive"


def order(queue: FairQueue[Item], *, background_lives: bool = True) -> list[int]:
    rows = []
    while (first := queue.first(background_lives=background_lives)) is not None:
        queue.take(first)
        rows.append(first.row)
    return rows


def queued(*items: Item) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for item in items:
        queue.add(item)
    return queue


def test_a_client_with_many_rows_and_one_with_few_take_turns() -> None:
    agents = [Item(row, "agents") for row in range(16)]
    queue = queued(*agents, Item(50, "person"), Item(51, "person"))
    assert order(queue) == [0, 50, 1, 51, *range(2, 16)]


def test_who_is_first_stays_first_whoever_comes() -> None:
    queue = queued(Item(1, "a"), Item(2, "a"))
    first = queue.first(background_lives=False)
    for row in range(3, 9):
        queue.add(Item(row, f"client {row}"))
        assert queue.first(background_lives=False) is first
    assert order(queue) == [1, *range(3, 9), 2]


def test_background_rows_come_last_until_they_were_passed_often_enough() -> None:
    fast = [Item(row) for row in range(2 * BACKGROUND_EVERY)]
    slow = [Item(100, "", "background"), Item(101, "", "background")]
    assert order(queued(*slow, *fast)) == [*range(2 * BACKGROUND_EVERY), 100, 101]
    due = order(queued(*slow, *fast), background_lives=False)
    assert [due.index(100), due.index(101)] == [BACKGROUND_EVERY, 2 * BACKGROUND_EVERY + 1]


def test_a_row_that_was_put_back_is_the_next_of_all() -> None:
    queue = queued(Item(1, "a"), Item(2, "b"), Item(3, "a"))
    first = queue.first(background_lives=False)
    assert first is not None
    queue.take(first)
    queue.put_back(first)
    assert order(queue) == [1, 2, 3]


def test_a_row_that_leaves_takes_its_client_with_it_and_the_count_of_who_passed() -> None:
    queue = queued(Item(1, "a"), Item(2, "b"), Item(9, "", "background"), *map(Item, range(20, 40)))
    assert queue.remove(1) == Item(1, "a") and queue.remove(1) is None
    for _ in range(BACKGROUND_EVERY):
        first = queue.first(background_lives=False)
        assert first is not None
        queue.take(first)
    assert queue.due(background_lives=False)
    queue.remove(9)
    queue.add(Item(10, "", "background"))
    assert not queue.due(background_lives=False) and len(queue) == queue.waiting("interactive") + 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["interactive", "background"]))))
def test_every_row_has_its_turn_within_a_bound(arrivals: list[tuple[str, Priority]]) -> None:
    items = [Item(row, client, priority) for row, (client, priority) in enumerate(arrivals)]
    taken = [items[row] for row in order(queued(*items), background_lives=False)]
    assert sorted(item.row for item in taken) == list(range(len(items)))
    for item in items:
        lane = [other for other in taken if other.priority == item.priority]
        own = [other.row for other in lane if other.client == item.client]
        assert own == sorted(own)
        assert lane.index(item) < (own.index(item.row) + 1) * len({other.client for other in lane})
        if item.priority == "background":
            before = taken[: taken.index(item)]
            assert len(before) - lane.index(item) <= BACKGROUND_EVERY * (lane.index(item) + 1)


# --- the reserved place -----------------------------------------------------------------------


def test_background_rows_leave_a_place_to_interactive_ones() -> None:
    desk = Desk(places=3)
    desk.background(1, 2, 3)
    assert desk.admitted == [1, 2] and desk.gauges.pending_background_rows == 1
    desk.submit(4)
    assert desk.admitted == [1, 2, 4] and desk.displaced == []
    desk.hear(Released(4))
    assert desk.admitted == [1, 2, 4]  # it is reserved again
    desk.hear(Released(1))
    assert desk.admitted == [1, 2, 4, 3]


def test_they_leave_the_bytes_of_a_typical_interactive_row_too() -> None:
    desk = Desk(places=9, budget=Budget(3 * ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.hear(Released(1))
    desk.background(2, 3, 4)
    assert desk.admitted == [1, 2, 3]
    desk.submit(5)
    assert desk.admitted == [1, 2, 3, 5] and desk.displaced == []


def test_a_background_row_that_would_live_alone_need_not() -> None:
    desk = Desk(places=9, budget=Budget(ROW, 0, A_TOKEN))
    desk.submit(1)
    desk.hear(Released(1))
    desk.background(2)
    assert desk.admitted == [1, 2]


def test_the_last_seat_is_interactive_works() -> None:
    desk = Desk(places=3, seats=3)
    desk.background(1, 2)
    desk.hear(Released(1), Released(2))  # their callers still read
    desk.background(3)
    assert desk.admitted == [1, 2]
    desk.submit(4)
    assert desk.admitted == [1, 2, 4]


# --- displacement -----------------------------------------------------------------------------


def test_when_no_place_is_free_the_background_row_admitted_last_gives_way() -> None:
    desk = Desk(places=3)
    desk.background(1, 2, 3)
    desk.submit(4, 5, 6)
    assert desk.admitted == [1, 2, 4] and desk.displaced == [2]  # one is asked at a time
    desk.hear(Displaced(2, (7, 8)))
    assert desk.admitted == [1, 2, 4, 5] and desk.displaced == [2, 1]
    desk.hear(Displaced(1, ()))
    assert desk.admitted == [1, 2, 4, 5, 6]
    assert (desk.gauges.live_rows, desk.gauges.displaced_rows, desk.gauges.pending_rows) == (3, 2, 3)
    desk.hear(Released(4), Released(5), Released(6))
    assert desk.admitted[5:] == [1, 2]  # in their old order, before the third
    again = desk.prefill[-1]
    assert again.generated == (7, 8) and again.outlet is desk.emitters[2]
    assert desk.emitters[2] == [Accepted()]


def test_a_background_row_gives_way_when_the_bytes_are_lacking_if_that_helps() -> None:
    desk = Desk(places=9, budget=Budget(5 * ROW, 0, A_TOKEN))
    desk.background(1, 2)
    desk.submit(3, prompt=1000)  # beside it rows are as wide as it is: one has room
    assert desk.admitted == [1, 2] and desk.displaced == [2]
    desk.hear(Displaced(2, ()))
    assert desk.admitted == [1, 2, 3]
    desk.submit(4, prompt=2000)
    assert desk.displaced == [2]  # it would not fit beside the third either


def test_with_a_single_place_background_rows_may_have_it_and_give_it_up() -> None:
    desk = Desk(places=1)
    desk.background(1)
    desk.submit(2)
    assert desk.admitted == [1] and desk.displaced == [1]
    desk.hear(Displaced(1, (5,)))
    assert desk.admitted == [1, 2]
    desk.hear(Released(2))
    assert desk.admitted == [1, 2, 1]


def test_a_row_gives_way_so_often_and_no_more() -> None:
    desk = Desk(places=1)
    desk.background(1)
    for row in range(2, MOST_DISPLACED + 2):
        desk.submit(row)
        desk.hear(Displaced(1, ()), Released(row))
    desk.submit(99)
    assert desk.displaced == [1] * MOST_DISPLACED and desk.admitted[-1] == 1
    desk.hear(Released(1))
    assert desk.admitted[-1] == 99


def test_however_many_interactive_rows_come_background_work_goes_on() -> None:
    desk = Desk(places=2)
    desk.submit(1, 2)
    desk.background(100)
    for row in range(3, 30):
        desk.submit(row)
        desk.hear(Released(desk.admitted[-1]))
        if 100 in desk.admitted:
            break
    assert desk.admitted[:-1] == list(range(1, BACKGROUND_EVERY + 3))
    desk.submit(50, 51)  # a row that was due is not sent back
    assert desk.displaced == []


def test_a_row_that_is_kept_is_not_asked_again_and_the_next_is() -> None:
    desk = Desk(places=3)
    desk.background(1, 2)
    desk.submit(3, 4)
    desk.hear(Kept(2))
    assert desk.displaced == [2, 1]
    desk.hear(Kept(1), Released(2))
    assert desk.displaced == [2, 1] and desk.admitted == [1, 2, 3, 4]


def test_nobody_gives_way_while_a_row_is_leaving_or_no_seat_is_left() -> None:
    desk = Desk(places=2, seats=2)
    desk.background(1)
    desk.submit(2)
    desk.submit(3)
    assert desk.displaced == []  # it could not be seated
    desk = Desk(places=2)
    desk.background(1)
    desk.submit(2)
    desk.hear(Withdraw(2))
    desk.submit(3)
    assert desk.displaced == []
    desk.hear(Released(2))
    assert desk.admitted == [1, 2, 3]


@pytest.mark.parametrize("crossing", [True, False])
def test_the_withdraw_of_a_displaced_row_goes_the_whole_way(crossing: bool) -> None:
    """Its seat is held until then, whether it waits in the queue or is on its way there."""
    desk = Desk(places=1)
    desk.background(1)
    desk.submit(2)
    messages: list[ToAdmission] = [Displaced(1, (5,)), Withdraw(1)]
    desk.hear(*(reversed(messages) if crossing else messages))
    assert desk.withdrawn == [1] and desk.tickets == [] and desk.gauges.pending_rows == 0
    desk.hear(Departed(1), Released(2))
    assert desk.admitted == [1, 2] and len(desk.tickets) == 1


@pytest.mark.parametrize("crossing", [True, False])
def test_the_end_of_a_drains_grace_is_told_to_a_row_that_was_displaced(crossing: bool) -> None:
    desk = Desk(places=1)
    desk.background(1)
    desk.submit(2)
    messages: list[ToAdmission] = [Drain(), Cutoff()]
    messages.insert(2 if crossing else 0, Displaced(1, (5,)))
    desk.hear(*messages)
    failed = Failed("server_shutdown", "the server is shutting down")
    assert desk.emitters[1] == [Accepted(), failed]
    desk.hear(Withdraw(1))
    assert desk.withdrawn == [1] and not desk.queue.over
    rest: list[ToAdmission] = [Departed(1), Withdraw(2)]
    if not crossing:
        rest += [Released(2), Departed(2)]
    desk.hear(*rest)
    assert desk.queue.over and len(desk.tickets) == 2


def test_a_displaced_row_comes_again_during_a_drain_and_has_no_time_limit() -> None:
    desk = Desk(places=1, patience=5)
    desk.background(1)
    desk.submit(2)
    desk.hear(Displaced(1, ()), Drain())
    desk.now = 99.0
    desk.queue.expire()
    desk.hear(Released(2))
    assert desk.admitted == [1, 2, 1]


def test_background_rows_fill_the_queue_for_each_other_only() -> None:
    desk = Desk(places=2, waiting=1)
    desk.background(1, 2, 3)
    assert desk.emitters[3] == [Rejected("busy")]
    desk.submit(4, 5, 6)
    assert desk.admitted == [1, 4] and desk.emitters[5] == [Accepted()]
    assert desk.emitters[6] == [Rejected("busy")]
    desk.background(7)
    assert desk.emitters[7] == [Rejected("busy")]
