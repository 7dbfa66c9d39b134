"""The device thread's loop: when it tells of its steps."""

from collections.abc import Callable
from typing import Any

import attrs

from heard import Heard
from motet.actors.device import REPORT_EVERY, DeviceLoop, DevicePort, Watch
from motet.channels.device import RowTokens, Shutdown, Step, Stepped
from motet.channels.gauges import DeviceGauges


@attrs.define
class Counting:
    """An executor of one row whose n-th token is n, each step as long as it is told."""

    port: DevicePort
    steps: int
    step_time: float
    ends: int = 0
    now: float = 0.0
    made: int = 0
    width: int = 1

    def kv_bytes(self) -> int:
        return 0

    def step(self, built: Callable[[], None]) -> list[RowTokens]:
        built()
        self.now += self.step_time
        self.made += 1
        if self.made == self.steps:
            self.width = 0
            self.port.send_nowait(Shutdown())
        return [RowTokens(1, (self.made,), "stop" if self.made == self.ends else None)]

    def settle(self) -> list[RowTokens]:
        return []


def told(steps: int, granted: int, step_time: float, ends: int = 0) -> list[tuple[int, ...]]:
    """The tokens of each report, of a device that was granted so many steps."""
    port, decode = DevicePort(), Heard()
    executor: Any = Counting(port, steps, step_time, ends)
    outlets = Heard(), decode, Heard()
    loop = DeviceLoop(executor, port, *outlets, DeviceGauges(), Watch(), clock=lambda: executor.now)
    port.send_nowait(Step(granted))
    loop.run()
    reports = [message for message in decode if isinstance(message, Stepped)]
    assert all(report.steps == len(report.rows[0].tokens) for report in reports)
    return [report.rows[0].tokens for report in reports]


def test_slow_steps_are_told_of_one_by_one() -> None:
    assert told(4, 32, 2 * REPORT_EVERY)[:3] == [(1,), (2,), (3,)]


def test_fast_steps_are_told_of_together() -> None:
    assert told(9, 32, 0.3 * REPORT_EVERY)[:2] == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_before_the_grants_run_out_the_steps_are_told_of_however_fast() -> None:
    """Else the device would wait until decode has heard of them and granted more."""
    assert told(10, 10, 0.0)[0] == (1, 2, 3, 4, 5, 6)


def test_a_rows_end_is_told_of_with_the_next_step() -> None:
    assert told(5, 32, 0.0, ends=2)[0] == (1, 2)
