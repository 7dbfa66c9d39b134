"""Is motet as fast as mlx_lm.server? Both on one model, measured by turns, with the same requests.

    python benchmarks/serving.py [--model DIR] [--streams 1,2,4,8] [--rounds 7] [--json FILE]

Both servers are started anew for each round, for where a process happens to lie in memory moves its speed
by up to a tenth, and run side by side, one idle while the other is measured. In a round each gets the same
fresh prompts, so many streams at once; which of them is started and measured first alternates. A round in
which others used the machine is thrown away and done again. Told are each pair's ratios motet / mlx_lm of

    tok/s       tokens of all streams, over the time from the first request to the last end
    TTFT        time to the first text: the median of the round's streams, and the 95th percentile
    CPU/token   CPU seconds of the server's processes, over the tokens

and whether the gate is met: tok/s with a median of at least 1.0 and a lower quartile of at least 0.95,
CPU/token with a median of at most 1.0. Linux only. On a CPU OpenBLAS is preloaded for both if it is there.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio
from clients import Reply, body, connect, fetch
from machine import DISTURBED, IDLE, Meter, quiet
from prompts import requests
from servers import Server, ServerDied, default_model, environment, mlx_lm, motet, start

_TRIES = 3  # of a round that others disturb
_AFTER = 0.3  # seconds in which a server may finish what it does after its last byte
_MLX_LM = mlx_lm("--decode-concurrency", "8", "--prompt-concurrency", "8")
_PATH = "/v1/chat/completions"

Chats = list[list[dict[str, str]]]


@attrs.frozen
class Measured:
    """One server, one round, one number of streams."""

    tokens: int
    prompt_tokens: int
    wall: float
    ttft: list[float]
    cpu: float
    others: float
    idle_cores: float
    """Cores that the other server used meanwhile."""

    @property
    def speed(self) -> float:
        return self.tokens / self.wall

    @property
    def cpu_per_token(self) -> float:
        return self.cpu / self.tokens

    @property
    def disturbed(self) -> bool:
        return self.others > DISTURBED or self.idle_cores > IDLE


@attrs.frozen
class Pair:
    """The two servers in one round."""

    streams: int
    number: int
    motet: Measured
    mlx_lm: Measured

    @property
    def disturbed(self) -> bool:
        return self.motet.disturbed or self.mlx_lm.disturbed

    def ratio(self, of: Callable[[Measured], float]) -> float:
        return of(self.motet) / of(self.mlx_lm)


async def measure(server: Server, idle: Server, chats: Chats, max_tokens: int) -> Measured:
    """Send the chats at once; read all streams to their ends."""
    replies = [Reply() for _ in chats]
    async with connect(server.url) as http:
        await quiet(server.pid, idle.pid)
        meter = Meter(server.pid, idle.pid)
        async with trio.open_nursery() as nursery:
            for chat, reply in zip(chats, replies, strict=True):
                request = body(max_tokens, messages=chat)
                nursery.start_soon(fetch, http, _PATH, request, reply)
        await trio.sleep(_AFTER)
        use = meter.stop()
    server.check()
    idle.check()
    ends = [reply.ended for reply in replies if reply.ended is not None]
    usages = [reply.usage for reply in replies]
    return Measured(
        tokens=sum(usage["completion_tokens"] for usage in usages),
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        wall=max(ends) - min(reply.sent for reply in replies),
        ttft=[reply.first for reply in replies],
        cpu=use.cpu[server.pid],
        others=use.others,
        idle_cores=use.cores(idle.pid),
    )


async def measure_pair(
    ours: Server, theirs: Server, streams: int, number: int, options: argparse.Namespace, tried: int
) -> Pair:
    """One round of one number of streams."""
    chats = requests(random.Random(f"{options.seed} {streams} {number} {tried}"), streams)
    first, second = (ours, theirs) if number % 2 == 0 else (theirs, ours)
    one = await measure(first, second, chats, options.max_tokens)
    two = await measure(second, first, chats, options.max_tokens)
    return Pair(streams, number, *((one, two) if first is ours else (two, one)))


async def measure_round(servers: dict[str, Server], number: int, options: argparse.Namespace) -> list[Pair]:
    """One round, with the pairs that were disturbed."""
    ours, theirs = servers["motet"], servers["mlx_lm.server"]
    pairs: list[Pair] = []
    for streams in options.streams:
        for tried in range(_TRIES):
            pair = await measure_pair(ours, theirs, streams, number, options, tried)
            pairs.append(pair)
            _progress(pair)
            if not pair.disturbed:
                break
    return pairs


def _progress(pair: Pair) -> None:
    print(
        f"round {pair.number + 1}, {pair.streams} streams: "
        f"motet {_brief(pair.motet)}, mlx_lm {_brief(pair.mlx_lm)}"
        f"{'  (disturbed: thrown away)' if pair.disturbed else ''}",
        file=sys.stderr,
        flush=True,
    )


def _brief(one: Measured) -> str:
    return f"{one.tokens} tokens, {one.speed:.1f}/s, others {one.others:.0%}"


async def run(options: argparse.Namespace) -> list[Pair]:
    """In each round: start both servers, warm them up, measure."""
    env = environment()
    model = options.model or default_model()
    pairs: list[Pair] = []
    for number in range(options.rounds):
        commands = [("motet", motet()), ("mlx_lm.server", _MLX_LM)]
        async with contextlib.AsyncExitStack() as running:
            servers = {}
            for name, command in commands if number % 2 == 0 else reversed(commands):
                servers[name] = await running.enter_async_context(start(name, command, model, env))
            await warm_up(servers, number, options)
            pairs += await measure_round(servers, number, options)
    return pairs


async def warm_up(servers: dict[str, Server], number: int, options: argparse.Namespace) -> None:
    """Let each server run once with each number of streams."""
    for server in servers.values():
        (idle,) = (other for other in servers.values() if other is not server)
        for streams in options.streams:
            chats = requests(random.Random(f"{options.seed} warm {number} {streams}"), streams)
            await measure(server, idle, chats, 8)


# --- the report -------------------------------------------------------------------------------


def quartile(values: Sequence[float]) -> float:
    """The lower one."""
    return statistics.quantiles(values, n=4, method="inclusive")[0] if values[1:] else values[0]


def percentile_95(values: Sequence[float]) -> float:
    """The 95th percentile, between two values if need be."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if values[1:] else values[0]


_COLUMNS = (
    "streams  rounds |   tok/s  mlx_lm    ratio  quartile | TTFT p50  mlx_lm    ratio |"
    "      p95  mlx_lm    ratio | CPU/token  mlx_lm    ratio | gate"
)


def report(pairs: list[Pair], options: argparse.Namespace) -> None:
    """A line for each number of streams, and the verdict."""
    print(_COLUMNS)
    verdicts = []
    for streams in options.streams:
        kept = [pair for pair in pairs if pair.streams == streams and not pair.disturbed]
        if not kept:
            print(f"{streams:7} {0:7} | every round was disturbed")
            verdicts.append(False)
            continue
        met, line = _line(kept)
        verdicts.append(met)
        print(f"{streams:7} {len(kept):3}/{options.rounds:<3} | {line} | {_verdict(met)}")
    _notes(pairs)
    print(f"gate: {_verdict(all(verdicts))}")


def _line(pairs: list[Pair]) -> tuple[bool, str]:
    speeds = [pair.ratio(lambda one: one.speed) for pair in pairs]
    cpu = statistics.median(pair.ratio(lambda one: one.cpu_per_token) for pair in pairs)
    met = statistics.median(speeds) >= 1.0 and quartile(speeds) >= 0.95 and cpu <= 1.0
    speed = f"{_medians(pairs, lambda one: one.speed, 1)}  {quartile(speeds):8.3f}"
    p50 = _medians(pairs, lambda one: statistics.median(one.ttft), 1000)
    p95 = _medians(pairs, lambda one: percentile_95(one.ttft), 1000)
    per_token = _medians(pairs, lambda one: one.cpu_per_token, 1000)
    return met, f"{speed} |  {p50} |  {p95} |   {per_token}"


def _medians(pairs: list[Pair], of: Callable[[Measured], float], unit: float) -> str:
    ours = statistics.median(of(pair.motet) for pair in pairs) * unit
    theirs = statistics.median(of(pair.mlx_lm) for pair in pairs) * unit
    ratio = statistics.median(pair.ratio(of) for pair in pairs)
    return f"{ours:7.1f} {theirs:7.1f}  {ratio:7.3f}"


def _notes(pairs: list[Pair]) -> None:
    print("tok/s: aggregate; TTFT and CPU/token: ms; medians over the rounds, ratios motet / mlx_lm")
    thrown = sum(pair.disturbed for pair in pairs)
    unlike = [pair for pair in pairs if pair.motet.tokens != pair.mlx_lm.tokens]
    asked = [pair for pair in pairs if pair.motet.prompt_tokens != pair.mlx_lm.prompt_tokens]
    print(f"rounds thrown away: {thrown}; pairs that made unlike numbers of tokens: {len(unlike)}")
    if asked:
        print(f"pairs in which the servers made unlike prompts of the same chats: {len(asked)}")


def _verdict(met: bool) -> str:
    return "PASS" if met else "FAIL"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--streams", type=_numbers, default=[1, 2, 4, 8], metavar="N,...")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", default="0", help="what the prompts follow from")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the rounds")
    options = parser.parse_args()
    try:
        pairs = trio.run(partial(run, options))
    except ServerDied as error:
        print(error, file=sys.stderr)
        return 1
    report(pairs, options)
    if options.json:
        rounds = [attrs.asdict(pair) | {"disturbed": pair.disturbed} for pair in pairs]
        asked = {key: value for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({"options": asked, "rounds": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
