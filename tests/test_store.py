"""The prompt-cache store alone, its peers scripted; and its index of prefixes against a plain search."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from heard import Heard
from motet.actors.prefixes import PrefixIndex
from motet.actors.store import Store, store
from motet.channels import persister
from motet.channels.admission import Trimmed
from motet.channels.device import Forget, Shutdown, Snapshot
from motet.channels.gauges import StoreGauges
from motet.channels.namespace import UNNAMED, Namespace
from motet.channels.prefill import Lease
from motet.channels.store import (
    Closing,
    Found,
    Loaded,
    Persisted,
    Put,
    ReleaseLease,
    Take,
    ToStore,
    Trim,
)

Tokens = tuple[int, ...]


class Shelf:
    """A store, and what its peers have heard."""

    def __init__(self, ceiling: int = 1000) -> None:
        self.prefill, self.persister, self.device, self.admission = Heard(), Heard(), Heard(), Heard()
        self.gauges = StoreGauges()
        peers = self.prefill, self.persister, self.device, self.admission
        self.store = Store(*peers, ceiling, self.gauges)

    def hear(self, *messages: ToStore) -> None:
        for message in messages:
            self.store.hear(message)

    def put(
        self,
        handle: int,
        tokens: Tokens,
        nbytes: int = 10,
        trimmable: bool = True,
        namespace: Namespace = UNNAMED,
    ) -> None:
        self.hear(Put(tokens, Snapshot(handle, len(tokens), nbytes, trimmable, namespace)))

    @property
    def loads(self) -> list[persister.Load]:
        return [message for message in self.persister if isinstance(message, persister.Load)]

    @property
    def persists(self) -> list[int]:
        return [message.handle for message in self.persister if isinstance(message, persister.Persist)]

    def taken(
        self, prompt: Tokens, edge: int = 1, row: int = 99, namespace: Namespace = UNNAMED
    ) -> tuple[int | None, int]:
        """The handle and the length that a row gets of what is in memory; the lease is given back."""
        self.prefill.clear()
        asked = len(self.loads)
        self.hear(Take(row, prompt, edge, namespace))
        if len(self.loads) > asked:
            self.hear(Loaded(row, None))
        self.hear(ReleaseLease(row))
        (lease,) = self.prefill
        assert isinstance(lease, Lease) and lease.row == row
        return lease.snapshot, lease.length

    @property
    def forgotten(self) -> list[int]:
        return [handle for message in self.device for handle in message.handles]


# --- what a row gets --------------------------------------------------------------------------


def test_a_miss_asks_the_persister_before_it_is_told() -> None:
    shelf = Shelf()
    shelf.put(1, (8, 8))
    shelf.hear(Take(7, (1, 2, 3)))
    assert shelf.loads == [persister.Load(7, (1, 2), beyond=0)] and shelf.prefill == []
    shelf.hear(Loaded(7, None))
    assert shelf.prefill == [Lease(7, None, 0)]
    assert (shelf.gauges.misses, shelf.gauges.hits) == (1, 0)


def test_a_hit_is_told_at_once_and_asks_nobody() -> None:
    shelf = Shelf()
    shelf.put(4, (1, 2, 3))
    shelf.hear(Take(7, (1, 2, 3, 4)))
    assert shelf.prefill == [Lease(7, 4, 3)] and shelf.loads == []
    assert (shelf.gauges.hits, shelf.gauges.hit_tokens, shelf.gauges.misses) == (1, 3, 0)


@pytest.mark.parametrize(
    ("prompt", "cut", "whole"),
    [
        ((1, 2, 3, 4, 5, 6), 5, 5),  # one that goes on
        ((1, 2, 3, 4, 5), 4, 0),  # the same: its last token is to be read
        ((1, 2, 3, 4), 3, 0),  # one that it goes on from
        ((1, 2, 3, 9, 9, 9), 3, 0),  # one that parts from it
        ((1,), 0, 0),
        ((9, 2, 3, 4, 5, 6), 0, 0),
    ],
)
def test_the_longest_prefix_is_cut_only_from_what_can_be_cut(prompt: Tokens, cut: int, whole: int) -> None:
    for trimmable, length in [(True, cut), (False, whole)]:
        shelf = Shelf()
        shelf.put(1, (1, 2, 3, 4, 5), trimmable=trimmable)
        assert shelf.taken(prompt) == ((1, length) if length else (None, 0))


def test_of_several_the_longest_serves() -> None:
    shelf = Shelf()
    shelf.put(1, (1, 2), trimmable=False)
    shelf.put(2, (1, 2, 3, 4), trimmable=False)
    shelf.put(3, (1, 2, 3, 7, 7))
    assert shelf.taken((1, 2, 3, 4, 5)) == (2, 4)
    assert shelf.taken((1, 2, 3, 6, 6)) == (3, 3)
    assert shelf.taken((1, 2, 3)) == (1, 2)


def test_a_put_counts_only_the_tokens_that_its_snapshot_holds() -> None:
    shelf = Shelf()
    shelf.hear(Put((1, 2, 3, 4), Snapshot(1, 3, 10, trimmable=False)))
    assert shelf.taken((1, 2, 3, 9)) == (1, 3)


def test_with_an_edge_the_length_is_rounded_down_to_it_if_the_entry_can_be_cut() -> None:
    ten, prompt = tuple(range(10)), tuple(range(11))
    cut, whole = Shelf(), Shelf()
    cut.put(1, ten)
    whole.put(1, ten, trimmable=False)
    assert [cut.taken(prompt, edge) for edge in (1, 4, 5, 16)] == [(1, 10), (1, 8), (1, 10), (None, 0)]
    assert [whole.taken(prompt, edge) for edge in (1, 4, 5)] == [(1, 10), (None, 0), (1, 10)]


def test_an_entry_off_the_edge_does_not_hide_a_shorter_one_on_it() -> None:
    shelf = Shelf()
    shelf.put(1, tuple(range(8)), trimmable=False)
    shelf.put(2, tuple(range(10)), trimmable=False)
    assert shelf.taken(tuple(range(12)), edge=4) == (1, 8)


# --- leases and the ceiling -------------------------------------------------------------------


def test_a_leased_entry_stays_until_every_row_has_released_it() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 60)
    shelf.hear(Take(7, (1, 1, 1)), Take(8, (1, 1, 1)))
    shelf.put(2, (2, 2), 60)  # too much, and the older one is leased
    assert shelf.forgotten == [2]
    shelf.hear(ReleaseLease(7), ReleaseLease(7))
    shelf.put(3, (3, 3), 60)
    assert shelf.forgotten == [2, 3]
    shelf.hear(ReleaseLease(8))
    shelf.put(4, (4, 4), 60)
    assert shelf.forgotten == [2, 3, 1]
    assert (shelf.gauges.entries, shelf.gauges.bytes) == (1, 60)


def test_a_release_before_the_answer_takes_the_question_back() -> None:
    shelf = Shelf()
    shelf.hear(Take(7, (1, 2, 3)), ReleaseLease(7), Loaded(7, None))
    assert shelf.prefill == [] and shelf.gauges.misses == 0


def test_the_least_recently_used_goes_first_and_is_the_only_one_forgotten() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 40)
    shelf.put(2, (2, 2), 40)
    assert shelf.taken((1, 1, 1)) == (1, 2)
    shelf.put(3, (3, 3), 40)
    assert shelf.device == [Forget((2,))]
    assert shelf.taken((2, 2, 2)) == (None, 0)
    assert shelf.taken((1, 1, 1)) == (1, 2) and shelf.taken((3, 3, 3)) == (3, 2)
    assert (shelf.gauges.entries, shelf.gauges.bytes) == (2, 80)


def test_the_ceiling_itself_may_be_reached() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 50)
    shelf.put(2, (2, 2), 50)
    assert shelf.forgotten == [] and shelf.gauges.bytes == 100
    shelf.put(3, (3, 3), 1)
    assert shelf.forgotten == [1]


def test_under_a_ceiling_of_nothing_nothing_is_kept() -> None:
    shelf = Shelf(ceiling=0)
    shelf.put(1, (1, 2))
    assert shelf.forgotten == [1] and shelf.taken((1, 2, 3)) == (None, 0)


def test_what_an_entry_covers_is_forgotten_at_once_and_counts_as_a_use_of_it() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 2, 3), 40)
    shelf.put(2, (5, 5), 40)
    shelf.put(3, (1, 2), 40)
    shelf.put(4, (1, 2, 3), 40)
    assert shelf.device == [Forget((3,)), Forget((4,))] and shelf.gauges.entries == 2
    shelf.put(5, (6, 6), 40)
    assert shelf.forgotten == [3, 4, 2]


def test_what_cannot_be_cut_covers_only_its_equal() -> None:
    shelf = Shelf()
    shelf.put(1, (1, 2, 3), trimmable=False)
    shelf.put(2, (1, 2), trimmable=False)
    shelf.put(3, (1, 2, 3), trimmable=False)
    assert shelf.forgotten == [3]
    assert shelf.taken((1, 2, 9)) == (2, 2)


def test_a_longer_entry_that_can_be_cut_replaces_its_prefixes_unless_leased() -> None:
    shelf = Shelf()
    shelf.put(1, (1,))
    shelf.put(2, (1, 2))  # replaces 1
    shelf.hear(Take(7, (1, 2, 3)))
    shelf.put(3, (1, 2, 3), trimmable=False)  # serves nobody else's callers
    assert shelf.forgotten == [1]
    shelf.put(4, (1, 2, 3, 4, 5))
    assert shelf.forgotten == [1]  # 2 is leased, 3 is not of its kind
    shelf.hear(ReleaseLease(7))
    assert shelf.taken((1, 2, 3, 4, 5, 6)) == (4, 5)


# --- asked to make room -----------------------------------------------------------------------


def test_asked_to_make_room_the_store_evicts_the_least_recently_used_and_answers() -> None:
    shelf = Shelf(ceiling=100)
    for handle in (1, 2, 3):
        shelf.put(handle, (handle, handle), 30)
    shelf.hear(Trim(60))
    assert shelf.forgotten == [1] and shelf.admission == [Trimmed()]
    shelf.put(4, (4, 4), 30)  # the new ceiling holds from then on
    assert shelf.forgotten == [1, 2] and shelf.gauges.bytes == 60
    shelf.hear(Trim(0))
    assert sorted(shelf.forgotten) == [1, 2, 3, 4] and shelf.admission == [Trimmed(), Trimmed()]


def test_allowed_more_the_store_answers_at_once_and_keeps_more() -> None:
    shelf = Shelf(ceiling=0)
    shelf.hear(Trim(50))
    assert shelf.admission == [Trimmed()] and shelf.device == []
    shelf.put(1, (1, 1), 50)
    assert shelf.gauges.bytes == 50 and shelf.admission == [Trimmed()]


def test_what_is_leased_is_not_evicted_and_the_answer_waits_for_its_release() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 40)
    shelf.put(2, (2, 2), 40)
    shelf.hear(Take(7, (1, 1, 1)), Take(8, (1, 1, 1)), Trim(30))
    assert shelf.forgotten == [2] and shelf.admission == []
    shelf.hear(ReleaseLease(7))
    assert shelf.forgotten == [2] and shelf.admission == []
    shelf.hear(ReleaseLease(8))
    assert shelf.forgotten == [2, 1] and shelf.admission == [Trimmed()]


def test_while_a_lease_keeps_it_above_the_store_keeps_nothing_new() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 40)
    shelf.hear(Take(7, (1, 1, 1)), Trim(39))
    shelf.put(2, (2, 2), 10)
    assert shelf.forgotten == [2] and shelf.admission == []
    shelf.hear(ReleaseLease(7))
    assert shelf.admission == [Trimmed()] and shelf.gauges.bytes == 0


async def test_when_both_writers_have_left_the_device_is_shut_down_and_the_persister_told() -> None:
    to_persister, to_device, over = Heard(), Heard(), trio.Event()
    say, inbox = trio.open_memory_channel[ToStore](10)

    async def act() -> None:
        await store(inbox, Heard(), to_persister, to_device, Heard(), 100, StoreGauges())
        over.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            say.send_nowait(Closing())
            say.send_nowait(Put((1, 2), Snapshot(1, 2, 500, trimmable=True)))  # of the other writer
            await wait_all_tasks_blocked()
            assert to_device == [Forget((1,))] and to_persister == [] and not over.is_set()
            say.send_nowait(Closing())
            await over.wait()
    assert to_device == [Forget((1,)), Shutdown()] and to_persister == [persister.Closing()]


# --- namespaces -------------------------------------------------------------------------------

NAMESPACE = Namespace("model", ("adapter@1",), "plain", ("draft",))
OTHERS = [
    Namespace("another", ("adapter@1",), "plain", ("draft",)),
    Namespace("model", ("adapter@2",), "plain", ("draft",)),
    Namespace("model", (), "plain", ("draft",)),
    Namespace("model", ("adapter@1",), "affine8", ("draft",)),
    Namespace("model", ("adapter@1",), "plain", ()),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_prefix_serves_only_its_own_namespace(other: Namespace) -> None:
    """Model, adapters, scheme, companions: each alone keeps two rows apart."""
    shelf = Shelf()
    shelf.put(1, (1, 2, 3), namespace=NAMESPACE)
    assert shelf.taken((1, 2, 3, 4), namespace=other) == (None, 0)
    assert shelf.loads[-1].namespace == other
    shelf.put(2, (1, 2, 3), namespace=other)
    assert shelf.taken((1, 2, 3, 4), namespace=other) == (2, 3)
    assert shelf.taken((1, 2, 3, 4), namespace=NAMESPACE) == (1, 3)
    assert shelf.forgotten == [] and Namespace.decoded(other.encoded()) == other


# --- what goes first --------------------------------------------------------------------------


@pytest.mark.parametrize("trimmable", [True, False])
def test_a_shared_system_prompt_outlives_the_tails_that_use_it(trimmable: bool) -> None:
    """Eight rows of 100 tokens more than it, in memory for five of them."""
    system = tuple(range(1000))
    shelf = Shelf(ceiling=5600)
    shelf.put(1, system, 1000, trimmable)
    for i in range(8):
        shelf.put(2 + i, system + (2000 + i,) * 100, 1100, trimmable)
    shelf.put(20, (5,) * 900, 900, trimmable)
    shelf.hear(Trim(2000))
    assert shelf.taken((*system, 7))[1] == 1000 and shelf.taken((5,) * 901)[1] == 900


def test_what_is_dear_to_read_again_for_its_bytes_outlives_what_is_cheap() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1,) * 50, 40)
    shelf.put(2, (2,) * 2, 40)
    shelf.put(3, (3,) * 50, 40)
    assert shelf.forgotten == [2]
    shelf.put(4, (4,) * 50, 40)
    assert shelf.forgotten == [2, 1]


def test_age_tells_in_the_end() -> None:
    """However dear, what nobody asks for any more goes."""
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1,) * 50, 40)
    for i in range(100):
        shelf.put(2 + i, (100 + i,) * 5, 40)
    assert 1 in shelf.forgotten and shelf.forgotten.index(1) > 5


def test_nothing_goes_for_what_is_too_large_itself() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 40)
    shelf.put(2, (2,) * 50, 101)
    assert shelf.forgotten == [2] and shelf.gauges.bytes == 40


# --- with the persister -----------------------------------------------------------------------


def test_what_was_put_is_written_one_after_the_other_and_not_if_it_has_gone() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 1), 40)
    shelf.put(2, (2, 2), 40)
    assert shelf.persists == [1]
    shelf.put(3, (3,) * 9, 90)  # 1 and 2 go
    shelf.hear(Persisted(1, stored=False))
    assert shelf.persists == [1, 3]
    shelf.hear(Closing(), Closing())
    assert not shelf.store.over
    shelf.hear(Persisted(3, stored=True))
    assert shelf.store.over


def test_what_memory_lacks_is_asked_for_and_restored_and_not_written_again() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 2), 10)
    shelf.hear(Persisted(1, stored=True), Take(7, (1, 2, 3, 4, 5)))
    assert shelf.loads == [persister.Load(7, (1, 2, 3, 4), beyond=2)]
    shelf.hear(Found(7, 50))
    assert shelf.persister[-1] == persister.Fetch(7) and shelf.prefill == []
    shelf.hear(Loaded(7, Snapshot(9, 4, 50, trimmable=True), (1, 2, 3, 4)))
    assert shelf.prefill == [Lease(7, 9, 4)]
    assert shelf.persists == [1] and shelf.gauges.bytes == 50  # 1 is covered
    shelf.hear(Trim(0))
    assert shelf.admission == []  # leased
    shelf.hear(ReleaseLease(7))
    assert shelf.admission == [Trimmed()]


def test_room_is_made_before_a_file_is_read() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 2), 80)
    shelf.hear(Take(7, (5, 6, 7)), Found(7, 50))
    assert shelf.forgotten == [1] and shelf.persister[-1] == persister.Fetch(7)
    shelf.put(2, (3, 4), 60)  # what is reserved counts
    assert shelf.forgotten == [1, 2]
    shelf.hear(Loaded(7, None))
    shelf.put(3, (3, 4), 60)
    assert shelf.forgotten == [1, 2] and shelf.prefill == [Lease(7, None, 0)]


def test_what_memory_got_while_the_question_was_on_its_way_is_not_read_from_disk_again() -> None:
    shelf = Shelf()
    shelf.hear(Take(7, (1, 2, 3, 4)), Take(8, (1, 2, 3, 5)), Found(7, 50))
    shelf.hear(Loaded(7, Snapshot(9, 3, 50, trimmable=True), (1, 2, 3)))
    shelf.hear(Found(8, 50))  # the persister had done with the file when it was asked once more
    assert shelf.persister[-1] == persister.Cancel(8)
    shelf.hear(Loaded(8, None))
    assert shelf.prefill == [Lease(7, 9, 3), Lease(8, 9, 3)] and len(shelf.loads) == 2


def test_a_file_that_serves_more_than_memory_got_meanwhile_is_asked_for_again() -> None:
    shelf = Shelf()
    shelf.hear(Take(8, (1, 2, 3, 5)))
    shelf.put(1, (1, 2))
    shelf.hear(Found(8, 50), Loaded(8, None))
    assert shelf.loads[-1] == persister.Load(8, (1, 2, 3), beyond=2) and shelf.prefill == []
    shelf.hear(Found(8, 50))
    assert shelf.persister[-1] == persister.Fetch(8)


def test_a_file_for_which_there_is_no_room_is_not_read() -> None:
    shelf = Shelf(ceiling=100)
    shelf.put(1, (1, 2), 80)
    shelf.hear(Take(8, (1, 2, 3)), Take(7, (5, 6, 7)), Found(7, 50))
    assert shelf.persister[-1] == persister.Cancel(7) and shelf.forgotten == []
    shelf.hear(Loaded(7, None))
    assert shelf.prefill[-1] == Lease(7, None, 0)


def test_asked_to_make_room_the_store_takes_it_from_what_is_being_restored() -> None:
    shelf = Shelf(ceiling=100)
    shelf.hear(Take(7, (5, 6, 7)), Found(7, 50), Trim(20))
    assert shelf.persister[-1] == persister.Cancel(7) and shelf.admission == []
    shelf.hear(Loaded(7, None))
    assert shelf.admission == [Trimmed()] and shelf.prefill == [Lease(7, None, 0)]


def test_a_row_that_leaves_while_its_prefix_is_read_takes_the_question_back_once() -> None:
    shelf = Shelf()
    shelf.hear(Take(7, (5, 6, 7)), Found(7, 50), ReleaseLease(7), ReleaseLease(7))
    assert [message for message in shelf.persister if message == persister.Cancel(7)] == [persister.Cancel(7)]
    shelf.hear(Loaded(7, Snapshot(9, 2, 50, trimmable=True), (5, 6)))  # it crossed the Cancel
    assert shelf.prefill == [] and shelf.taken((5, 6, 1)) == (9, 2)


def test_a_row_that_asks_again_is_answered_once_when_its_first_question_has_ended() -> None:
    shelf = Shelf()
    shelf.hear(Take(7, (5, 6, 7)), ReleaseLease(7), Take(7, (5, 6, 7)))
    assert len(shelf.loads) == 1
    shelf.hear(Loaded(7, None))
    assert shelf.prefill == [Lease(7, None, 0)]


# --- the index --------------------------------------------------------------------------------


def shared(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def serves(entry: Tokens, cuttable: bool, prompt: Tokens) -> int:
    """By the definition: how long a prefix of the prompt an entry serves."""
    length = shared(entry, prompt)
    return length if cuttable or length == len(entry) else 0


def check(index: PrefixIndex[int], entries: dict[Tokens, tuple[int, bool]], prompts: list[Tokens]) -> None:
    for prompt in prompts:
        served = {value: serves(entry, cuttable, prompt) for entry, (value, cuttable) in entries.items()}
        best = max(served.values(), default=0)
        found, length = index.longest(prompt)
        assert length == best
        assert found is None if best == 0 else served.get(found or 0) == best
    for entry in entries:
        covered = [v for e, (v, cuttable) in entries.items() if cuttable and shared(e, entry) == len(e)]
        assert sorted(index.on_the_way_to(entry)) == sorted(set(covered) - {entries[entry][0]})


SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


@pytest.mark.parametrize("kinds", [(True,), (False,), (True, False)], ids=["cuttable", "not", "mixed"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_index_finds_what_a_search_through_all_entries_finds(
    kinds: tuple[bool, ...], data: st.DataObject
) -> None:
    """Random additions and removals, each followed by random questions."""
    prompts = data.draw(st.lists(SEQUENCES, min_size=1, max_size=6))
    changes = data.draw(
        st.lists(st.tuples(SEQUENCES, st.sampled_from(["add", "add", "remove"]), st.sampled_from(kinds)))
    )
    index: PrefixIndex[int] = PrefixIndex()
    entries: dict[Tokens, tuple[int, bool]] = {}
    for value, (tokens, change, cuttable) in enumerate(changes, 1):
        if change == "add":
            index.add(tokens, value, cuttable=cuttable)
            entries[tokens] = (value, cuttable)
        elif entries:
            gone = max(entries, key=lambda entry: shared(entry, tokens))
            del entries[gone]
            index.remove(gone)
        check(index, entries, [*prompts, tokens])
    for entry in entries:
        index.remove(entry)
    assert not index._root.children  # nothing is left behind
