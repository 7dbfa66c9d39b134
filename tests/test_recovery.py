"""Recovery by recompute: a step's fault costs no stream, and a row that fails alone is the guilty one."""

import pytest

import families
import motet
from heard import Heard
from motet.actors import decode as decoding
from motet.actors.decode import DeviceFailing
from motet.actors.system import Settings, open_system
from motet.channels import device, prefill
from motet.channels.admission import Departed, Released
from motet.channels.decode import Convicted, Cutoff, Join, Prepared, Stop, ToDecode, Withdraw
from motet.channels.device import Dropped, RowTokens
from motet.channels.emitter import Tokens
from motet.channels.request import Sampling, Work
from motet.engine.group import Group
from motet.engine.session import SamplingSession
from test_containment import PROMPTS, all_told, check_as_new, check_whole, told
from test_decode import Bench, faulted, snapshot, stepped

LIMIT = 24

# --- the decode stepper alone -----------------------------------------------------------------


def again(row: int, first: int, finish: device.Finish | None = None) -> Join:
    """A row comes back from prefill with its next token."""
    return Join((Prepared(Work(row, (row,) * 3, 50, Sampling(), frozenset()), Heard(), (first,), finish),))


def test_the_rows_of_a_failed_step_go_back_with_all_their_tokens_and_the_others_go_on() -> None:
    bench = Bench()
    bench.join(1, 2, 3)  # the device has not taken in 3 when the step of 1 and 2 fails
    bench.hear(stepped(RowTokens(1, (11,))), faulted(1, 2))
    (recover,) = bench.prefill
    assert [(row.work.row, row.generated) for row in recover.rows] == [(1, (100, 11)), (2, (200,))]
    assert bench.admission == [] and bench.store == []  # their seats and places stay held
    bench.hear(stepped(RowTokens(3, (31,))), again(1, 12), stepped(RowTokens(1, (13,))))
    assert bench.emitters[1] == [Tokens((token,), None) for token in (100, 11, 12, 13)]
    assert bench.emitters[3][1:] == [Tokens((31,), None)]
    assert (bench.gauges.step_faults, bench.gauges.recovered_rows, bench.gauges.active_rows) == (1, 2, 2)


def test_a_recovered_rows_put_names_every_token() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(faulted(1), again(1, 11), stepped(RowTokens(1, (12,), "length", snapshot(5))))
    (put,) = bench.store
    assert put.tokens == (1, 1, 1, 100, 11, 12)


BACK: dict[str, tuple[list[ToDecode], bool]] = {
    # What decode hears after the fault, and whether the row was let go here (else prefill says Released).
    "withdrawn while away": ([Withdraw(1), Withdraw(1)], False),
    "withdrawn while it comes": ([Withdraw(1), again(1, 11), Withdraw(1), Dropped(1, None)], True),
    "ended as it came": ([Withdraw(1), again(1, 11, "length"), Withdraw(1)], True),
    "convicted, then withdrawn": ([Convicted(1), Withdraw(1)], False),
    "withdrawn, then convicted": ([Withdraw(1), Convicted(1), Withdraw(1)], False),
    "cut off while away": ([Cutoff(), Withdraw(1), Withdraw(1)], False),
    "stopped while away": ([Stop(1), again(1, 11), Dropped(1, None), Withdraw(1)], True),
}


@pytest.mark.parametrize("way", BACK)
def test_however_a_row_leaves_that_went_back_it_departs_once(way: str) -> None:
    messages, here = BACK[way]
    bench = Bench()
    bench.join(1, 2)
    bench.hear(faulted(1, 2), *messages)
    assert [m for m in bench.admission if m.row == 1] == [Released(1), Departed(1)][not here :]
    asked = [m for m in bench.prefill if m == prefill.Abandon(1)]
    assert len(asked) == sum(isinstance(m, Withdraw) for m in messages) - 1


def test_a_row_that_was_stopped_while_away_is_told_nothing_more() -> None:
    bench = Bench()
    bench.join(1)
    bench.hear(faulted(1), Stop(1), again(1, 11))
    assert bench.emitters[1] == [Tokens((100,), None)] and bench.dropped == [(1,)]


def test_three_faults_that_nobody_is_convicted_of_within_a_minute_end_the_engine() -> None:
    bench = Bench()
    bench.join(1)
    for bench.now in (0.0, 30.0):
        bench.hear(faulted(1), again(1, 11))
    bench.now = 59.9
    bench.hear(faulted(1))
    with pytest.raises(DeviceFailing):
        bench.hear(again(1, 11))


def test_faults_that_are_explained_or_far_apart_do_not() -> None:
    bench = Bench()
    for row in range(0, 16, 2):
        bench.now = 31.0 * row / 2
        bench.join(row, row + 1)
        bench.hear(faulted(row, row + 1), again(row, 5), again(row + 1, 5))
        bench.join(row + 100)
        bench.hear(faulted(row, row + 100), Convicted(row + 100), again(row, 6))
    bench.now += 1  # the third in 32 seconds
    with pytest.raises(DeviceFailing):
        bench.hear(faulted())  # of rows that were all being dropped: nobody is left to be convicted


def test_a_fault_that_is_closed_late_counts_as_of_its_time() -> None:
    """Its row was displaced on its way back."""
    bench = Bench()
    bench.join(1)
    bench.hear(faulted(1))
    bench.join(2)
    for bench.now in (50.0, 140.0):
        bench.hear(faulted(2), again(2, 11))
    bench.hear(again(1, 11))
    assert bench.gauges.active_rows == 2


# --- a real engine ----------------------------------------------------------------------------


class Breaking:
    """Makes one step of a group raise, and a guilty row's sampling wherever it is drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.faults = 0
        self.fails_at = -1
        self.guilty: tuple[int, int] | None = None
        """A seed, and the sample index at which its row fails wherever it is drawn."""
        step, next_key = Group.step, SamplingSession.next_key

        def breaking_step(group: Group, *arguments: object) -> object:
            self.steps += 1
            if self.steps == self.fails_at:
                self.faults += 1
                raise RuntimeError("injected")
            return step(group, *arguments)  # type: ignore[arg-type]

        def breaking_key(session: SamplingSession) -> tuple[int, int]:
            if (session.seed, session.drawn) == self.guilty:
                self.faults += 1
                raise RuntimeError("injected")
            return next_key(session)

        monkeypatch.setattr(Group, "step", breaking_step)
        monkeypatch.setattr(SamplingSession, "next_key", breaking_key)


def recovered(engine: motet.Engine) -> int:
    return int(engine.statistics()["device"]["recovered_rows"])


@pytest.mark.parametrize("family", ["llama", "llama_swa", "mamba", "qwen3_5"])
async def test_a_fault_in_any_one_step_costs_no_stream_a_token(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the run in turn; four streams, each with the text that it has when nothing fails."""
    breaking = Breaking(monkeypatch)
    monkeypatch.setattr(decoding, "FAULT_WINDOW", -1.0)  # each fault as if it were the only one
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=1 << 20)) as engine:
        alone = [await told(engine, prompt, LIMIT) for prompt in PROMPTS]
        most = 0
        for at in range(1, LIMIT + 8):
            breaking.steps, breaking.fails_at = 0, at
            engine.gauges.decode.recovered_rows = 0
            events = await all_told(engine, PROMPTS, LIMIT)
            for got, want in zip(events, alone, strict=True):
                check_whole(got, want)
            most = max(most, recovered(engine))
        assert breaking.faults >= LIMIT - 2 and most == 4
        await check_as_new(engine, (await told(engine, PROMPTS[1])))


@pytest.mark.parametrize("at", [1, 5, 11])
@pytest.mark.parametrize("family", ["llama", "llama_swa", "mamba"])
async def test_a_fault_that_follows_a_row_is_that_rows_alone(
    family: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking = Breaking(monkeypatch)
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=0)) as engine:
        alone = [await told(engine, prompt) for prompt in PROMPTS]
        for _ in range(4):  # more than three faults in a minute: all explained
            breaking.guilty = (666, at)
            requests = [motet.Request(prompt, max_tokens=40) for prompt in PROMPTS]
            bad = motet.Request(PROMPTS[0], max_tokens=40, temperature=1.0, seed=666)
            events: list[list[motet.Event]] = [[] for _ in range(5)]
            async with engine.open_rows([*requests, bad]) as stream:
                async for event in stream:
                    events[event.index].append(event)
            for got, want in zip(events, alone, strict=False):
                check_whole(got, want)
            end = events[4][-1]
            assert isinstance(end, motet.Failed) and end.code == "step_failed"
            breaking.guilty = None
        assert engine.health == "ok" and breaking.faults >= 8
        await check_as_new(engine, alone[1])


async def test_a_seeded_row_goes_on_with_the_samples_it_would_have_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breaking = Breaking(monkeypatch)

    async def texts(engine: motet.Engine) -> list[str]:
        requests = [
            motet.Request(
                prompt,
                max_tokens=LIMIT,
                temperature=0.9,
                top_p=0.9,
                seed=i,
                repetition_penalty=1.5 if i else None,
                frequency_penalty=i / 2,
                xtc_probability=i / 4,
            )
            for i, prompt in enumerate(PROMPTS)
        ]
        said = [""] * len(requests)
        async with engine.open_rows(requests) as stream:
            async for event in stream:
                if isinstance(event, motet.Text):
                    said[event.index] += event.text
        return said

    async with open_system(families.loader("llama"), Settings(prompt_cache_bytes=0)) as engine:
        want = await texts(engine)
        breaking.steps, breaking.fails_at = 0, 9
        assert await texts(engine) == want
        assert breaking.faults == 1 and recovered(engine) == 4
