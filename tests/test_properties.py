"""The actors under random submits, withdrawals, slow readers, rows that give way, faults and drains.

Rules collect a plan; the plan runs in virtual time on a scripted device. Whatever the plan: each caller that
stays gets exactly one terminal event a row, its text is the script's, the ledger ends at zero, the device
never holds more than the budget (scripted.py), nothing is left on it but what the store holds, and every
task ends.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import families
import motet
from motet.actors.stream import EngineDied
from motet.actors.system import Settings
from motet.channels.request import Priority, Sampling, Work
from motet.engine.projection import RowLength
from scripted import ScriptedSystem, scripted_projection, scripted_system, token_of

LONGEST, SHORT = RowLength(400, 30), RowLength(100, 30)
COSTS = scripted_projection(Settings())
BUDGETS = [COSTS.needed([SHORT]), COSTS.needed([LONGEST]), COSTS.needed([SHORT] * 3) + 4_000]
"""Some rows do not fit at all; one fits at a time, of any length; a few, and a little beside them."""

Action = Callable[["Run"], Awaitable[None]]


@attrs.define(eq=False)
class Caller:
    """One caller: what it asks, when it leaves, how slowly it reads, what it was told."""

    prompt: tuple[int, ...]
    limit: int
    leave_after: float | None
    read_every: float
    events: list[motet.Event] = attrs.Factory(list)
    refused: str | None = None
    left: bool = False
    client: str = ""
    priority: Priority = "interactive"

    async def run(self, engine: motet.Engine) -> None:
        with trio.move_on_after(float("inf") if self.leave_after is None else self.leave_after) as scope:
            try:
                options = {"client": self.client, "priority": self.priority}
                async with engine.generate(self.prompt, max_tokens=self.limit, **options) as stream:
                    async for event in stream:
                        self.events.append(event)
                        await trio.sleep(self.read_every)
            except motet.NotTaken as error:
                self.refused = error.code
            except motet.InvalidRequest as error:
                self.refused = error.code
            except EngineDied:
                self.refused = "died"
        self.left = scope.cancelled_caught


@attrs.define
class Run:
    system: ScriptedSystem
    nursery: trio.Nursery
    callers: list[Caller]
    faults: bool = False


def check(run: Run) -> None:
    """What must hold when all is over."""
    for caller in run.callers:
        terminal = [e for e in caller.events if isinstance(e, motet.Finished | motet.Failed)]
        if caller.refused or caller.left:
            assert len(terminal) <= 1
            continue
        assert len(terminal) == 1 and caller.events[-1] is terminal[0]
        if isinstance(terminal[0], motet.Finished):
            assert terminal[0].usage.completion_tokens == caller.limit
            assert terminal[0].usage.prompt_tokens == len(caller.prompt)
            said = "".join(e.text for e in caller.events if isinstance(e, motet.Text))
            assert said == script_of(caller)
        else:
            assert run.faults or terminal[0].code in {"server_draining", "server_shutdown", "queue_timeout"}


def script_of(caller: Caller) -> str:
    work = Work(0, caller.prompt, caller.limit, Sampling(), frozenset())
    tokens = [token_of(work, i) for i in range(caller.limit)]
    return str(families.tokenizer().decode(tokens))


def check_empty(system: ScriptedSystem) -> None:
    """Nothing is left anywhere."""
    device, gauges = system.device, system.engine.gauges
    assert device.ended and not device.preparing and not device.group
    assert len(device.snapshots) == gauges.store.entries
    assert gauges.admission.live_rows == gauges.admission.pending_rows == 0
    assert gauges.admission.kv_projected_bytes == 0
    assert gauges.prefill.preparing_rows == gauges.decode.active_rows == 0
    assert not system.nursery.child_tasks
    assert system.boxes.tickets.statistics().current_buffer_used == (
        system.boxes.tickets.statistics().max_buffer_size
    )


class Plan(RuleBasedStateMachine):
    """Collects actions; runs them when the plan is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[Action] = []
        self.options: dict[str, float | None] = {}

    @initialize(
        batch=st.integers(1, 4),
        queue_limit=st.integers(1, 6),
        cache=st.sampled_from([0, 3_000, 1 << 20]),
        budget=st.sampled_from([None, *BUDGETS]),
        patience=st.sampled_from([None, None, 0.3]),
    )
    def shape(
        self, batch: int, queue_limit: int, cache: int, budget: int | None, patience: float | None
    ) -> None:
        self.options = {
            "batch": batch,
            "queue_limit": queue_limit,
            "prompt_cache_bytes": cache,
            "kv_budget": budget,
            "queue_timeout": patience,
        }

    @rule(
        length=st.integers(1, 400),
        shared=st.booleans(),
        limit=st.integers(1, 30),
        leave=st.one_of(st.none(), st.floats(0, 1.5)),
        read_every=st.sampled_from([0.0, 0.0, 0.1]),
        whose=st.sampled_from(["a", "a", "b", "c"]),
        priority=st.sampled_from(["interactive", "background", "background"]),
        pause=st.sampled_from([0.0, 0.0, 0.03, 0.2]),
    )
    def submit(
        self,
        length: int,
        shared: bool,
        limit: int,
        leave: float | None,
        read_every: float,
        whose: str,
        priority: Priority,
        pause: float,
    ) -> None:
        first = 5 if shared else 5 + len(self.actions) % 40
        prompt = tuple(3 + (first + i) % 300 for i in range(length))

        async def action(run: Run) -> None:
            await trio.sleep(pause)
            caller = Caller(prompt, limit, leave, read_every, client=whose, priority=priority)
            run.callers.append(caller)
            run.nursery.start_soon(caller.run, run.system.engine)

        self.actions.append(action)

    @rule(seconds=st.floats(0, 0.5))
    def wait(self, seconds: float) -> None:
        async def action(_: Run) -> None:
            await trio.sleep(seconds)

        self.actions.append(action)

    @rule(kind=st.sampled_from(["chunk", "join", "step"]))
    def fault(self, kind: str) -> None:
        async def action(run: Run) -> None:
            if kind == "step":  # three within a minute are the engine's end: see test_containment
                await trio.sleep(31)
            setattr(run.system.device.faults, kind, 1)
            run.faults = True

        self.actions.append(action)

    def teardown(self) -> None:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(partial(self.carry_out), clock=clock)

    async def carry_out(self) -> None:
        with trio.fail_after(3600):
            async with scripted_system(**self.options) as system:
                async with trio.open_nursery() as nursery:
                    run = Run(system, nursery, [])
                    for action in self.actions:
                        await action(run)
                    nursery.start_soon(system.engine.drain, 2.0)
                await system.engine.over.wait()
                check(run)
                check_empty(system)


Plan.TestCase.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)
TestPlan = Plan.TestCase
