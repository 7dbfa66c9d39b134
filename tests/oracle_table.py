"""`make oracle`: every family's batch against mlx-lm's own, full logit vectors, as a table.

    python tests/oracle_table.py [--more] [FAMILY ...]

Each family's rows (unlike prompts, staggered joins, retirements, rejoins, windows crossed many times) run in
an engine of B places; then the device's command log is replayed by mlx-lm's own classes in this process and
every logit vector compared. A family that is served one row at a time is compared with mlx-lm's serial loop.
Without names: the thirty of families.py at every B; with ``--more`` the others that mlx-lm has at B = 3.
Exit status 1 if any vector differs.
"""

import argparse
import logging
import sys
import time

import attrs
import structlog
import trio

import families
import more_families
import motet
from motet.actors.system import Settings, open_system
from oracle import Outcome, Replay, Trace

WIDTHS = (1, 2, 3, 4, 8)
MORE_WIDTHS = (3,)
LENGTHS = (5, 23, 11, 64, 3, 40, 17, 30, 9, 52, 26)
LIMITS = (60, 30, 53, 42, 61, 35, 50, 40, 30, 25, 20)
"""Tokens of prompts and completions: more rows than places, so that rows join as others retire."""


@attrs.define
class Line:
    """What one family showed."""

    family: str
    reason: str | None = None
    firsts_apart: bool = False
    ran: list[int] = attrs.Factory(list)
    vectors: int = 0
    different: int = 0
    largest: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.ran.append(max(outcome.widths))
        self.vectors += outcome.vectors
        self.different += outcome.different
        self.largest = max(self.largest, outcome.largest)


async def run(family: str, width: int, line: Line) -> Trace:
    """All rows on an engine with ``width`` places, each opened when the one before has its first token."""
    trace = Trace()
    settings = Settings(batch=width, prompt_cache_bytes=0, prefill_step_size=48)
    async with open_system(
        families.loader(family), settings, observe=trace.observe, log_command=trace.log
    ) as engine:
        if width > 1:
            tested = engine.info.selftest
            line.reason, line.firsts_apart = tested.alone or tested.apart, tested.fresh is not None

        async def row(index: int, begun: trio.Event) -> None:
            prompt = families.prompts(LENGTHS)[index]
            async with engine.generate(prompt, max_tokens=LIMITS[index]) as events:
                async for event in events:
                    begun.set()
                    assert not isinstance(event, motet.Failed), event
            begun.set()

        async with trio.open_nursery() as nursery:
            for index in range(min(len(LENGTHS), width + 3)):
                begun = trio.Event()
                nursery.start_soon(row, index, begun)
                if index % 3:  # the others come two at a time
                    await begun.wait()
    return trace


def measure(family: str, widths: tuple[int, ...]) -> Line:
    """One family at each width."""
    line = Line(family)
    for width in widths:
        trace = trio.run(run, family, width, line)
        replay = Replay(families.build(family)[0], firsts_apart=line.firsts_apart)
        line.add(replay.run(trace))
    return line


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*")
    parser.add_argument("--more", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    families.CONFIGS.update(more_families.MORE)
    default = more_families.MORE if options.more else families.FAMILIES
    wrong = 0
    print("| family | B that ran | vectors | different | largest | note |\n|---|---|---|---|---|---|")
    for family in options.families or default:
        if family in families.UNSAFE:
            print(f"| {family} | - | - | - | - | never run: NaN or heap corruption inside MLX on a CPU |")
            continue
        started = time.perf_counter()
        line = measure(family, MORE_WIDTHS if options.more else WIDTHS)
        wrong += line.different
        ran = ", ".join(map(str, line.ran))
        print(
            f"| {family} | {ran} | {line.vectors} | {line.different} | {line.largest:.2g} "
            f"| {line.reason or ''} |",
            flush=True,
        )
        print(f"{family}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
