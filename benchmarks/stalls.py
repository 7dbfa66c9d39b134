"""How long reading prompts holds others up: the worst gaps of running streams, and short prompts' waits.

    python benchmarks/stalls.py [--model DIR] [--cases i,ii,iii,iv,v] [--repeats 3]
    python benchmarks/stalls.py --url http://127.0.0.1:8080 [--model DIR] [--max-decode-stall MS]

    i    seven streams run, a prompt of 1,500 tokens joins: the worst gap between two chunks of any of
         the seven. Bound: 2 x stall target + a step.
    ii   seven streams run and a prompt of 1,500 tokens is being read, a prompt of 20 tokens arrives:
         its time to the first token. Bound: 3 x (stall target + a step).
    iii  the same on a server that else only reads a prompt of 3,000 tokens, when 5, 30 and 60 percent
         of the time that this takes have passed.
    iv   the same on a server that else only reads eight prompts of 1,500 tokens, which came at once.
    v    seven streams run, eight prompts as long as the context allows join: the worst gap of any of the
         seven in 45 seconds. Bound as in i.

A step is the median gap just before. Times are the client's, at the arrival of a chunk. Servers are
started as the cases need them: ii, iv and v have more than eight requests and get a batch of 16, the others
8. With
--url a running server is measured; cases with more requests than its batch has rows are left out. --model
is then the directory whose tokenizer makes the prompts, and --max-decode-stall what the server was told.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import httpx
import trio
from clients import Reply, RequestFailed, body, connect, fetch, now
from machine import DISTURBED, Meter, quiet
from prompts import TokenPrompts
from servers import ServerDied, default_model, environment, motet, start

_SEVEN = 7
_LONG = 1500
_LONGEST = 3000
_SHORT = 20
_EIGHT = 8
_MOMENTS = (0.05, 0.30, 0.60)
_ENDLESS = 4000  # tokens: streams that run are left before their end
_WATCHED = 45.0  # seconds
_READS = 12  # of every stream before something joins: a step's measure


@attrs.frozen
class Outcome:
    """One measurement: all in seconds."""

    what: str
    worst: float
    bound: float
    step: float
    remarks: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return self.worst <= self.bound


class Client:
    """Sends fresh prompts to one server."""

    def __init__(self, http: httpx.AsyncClient, prompts: TokenPrompts, stall: float) -> None:
        self._http = http
        self._prompts = prompts
        self.stall = stall

    async def complete(self, length: int, max_tokens: int, reply: Reply) -> Reply:
        """Send a prompt of so many tokens and read its stream to the end."""
        return await self.send(self.draw(length), max_tokens, reply)

    def draw(self, length: int) -> list[int]:
        """A fresh prompt; long ones take so long to make that no stream is read meanwhile."""
        return self._prompts.draw(length)

    async def send(self, prompt: list[int], max_tokens: int, reply: Reply) -> Reply:
        """Send a prompt and read its stream to the end."""
        await fetch(self._http, "/v1/completions", body(max_tokens, prompt=prompt), reply)
        return reply

    async def statistics(self) -> dict[str, Any]:
        """The server's numbers."""
        answer: dict[str, Any] = (await self._http.get("/stats")).raise_for_status().json()
        return answer

    async def context(self) -> int:
        """Tokens of the longest row."""
        models = (await self._http.get("/v1/models")).raise_for_status().json()
        longest: int = models["data"][0]["max_model_len"]
        return longest

    async def idle(self) -> None:
        """Wait until the server has let go of everything."""
        waiting = ("active_rows", "preparing_rows", "pending_rows")
        while True:
            batch = (await self.statistics())["batch"]
            if not any(batch[name] for name in waiting):
                return
            await trio.sleep(0.2)

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[list[Reply]]:
        """So many streams that run, some chunks old, for as long as the block lasts."""
        replies = [Reply() for _ in range(count)]
        async with trio.open_nursery() as nursery:
            for i, reply in enumerate(replies):
                nursery.start_soon(self.complete, 40 + 8 * i, _ENDLESS, reply)
            # They begin one after another: a step is measured when all of them run.
            await self._all_have(replies, 2)
            await self._all_have(replies, max(len(reply.reads) for reply in replies) + _READS)
            yield replies
            nursery.cancel_scope.cancel()

    async def _all_have(self, replies: list[Reply], reads: int) -> None:
        for reply in replies:
            while len(reply.reads) < reads and reply.ended is None:  # noqa: ASYNC110 - as in fairness.py
                await trio.sleep(0.005)

    async def step(self) -> float:
        """The median gap of a lone stream."""
        reply = await self.complete(_SHORT, 2 * _READS, Reply())
        return statistics.median(_gaps(reply, 0.0, now()))

    async def wait_of_a_short_one(self) -> float:
        """Seconds until a short prompt's first token."""
        return (await self.complete(_SHORT, 4, Reply())).first


def _gaps(reply: Reply, begin: float, end: float) -> list[float]:
    """The waits between two chunks of text that overlap a stretch of time."""
    times = [at for at, _ in reply.pieces()]
    gaps = [later - at for at, later in pairwise(times) if later > begin and at < end]
    if reply.ended is None and times and times[-1] < end:
        gaps.append(end - times[-1])  # nothing has come since
    return gaps


def last_gaps(replies: list[Reply]) -> list[float]:
    """The last gaps of each stream."""
    return [gap for reply in replies for gap in _gaps(reply, 0.0, now())[-_READS:]]


def _ended(replies: list[Reply]) -> tuple[str, ...]:
    ended = sum(reply.ended is not None for reply in replies)
    return (f"{ended} of {len(replies)} streams had ended",) if ended else ()


# --- the cases --------------------------------------------------------------------------------


async def long_joins(client: Client) -> list[Outcome]:
    """Case i."""
    async with client.running(_SEVEN) as streams:
        step = statistics.median(last_gaps(streams))
        begin = now()
        await client.complete(_LONG, _EIGHT, Reply())
        end = now()
        remarks = _ended(streams)
    worst = max(gap for stream in streams for gap in _gaps(stream, begin, end))
    return [Outcome("worst gap", worst, 2 * client.stall + step, step, remarks)]


async def short_while_seven_run(client: Client) -> list[Outcome]:
    """Case ii."""
    async with client.running(_SEVEN) as streams:
        step = statistics.median(last_gaps(streams))
        outcome = await _short_meets(client, "first token", [_LONG], 2 * client.stall, step)
        return [attrs.evolve(outcome, remarks=outcome.remarks + _ended(streams))]


async def short_meets_one(client: Client) -> list[Outcome]:
    """Case iii."""
    step = await client.step()
    whole = (await client.complete(_LONGEST, 1, Reply())).first
    outcomes = []
    for moment in _MOMENTS:
        await client.idle()
        what = f"first token, at {moment:.0%}"
        outcomes.append(await _short_meets(client, what, [_LONGEST], moment * whole, step))
    return outcomes


async def short_meets_eight(client: Client) -> list[Outcome]:
    """Case iv."""
    step = await client.step()
    longs = [_LONG] * _EIGHT
    return [await _short_meets(client, "first token", longs, 2 * client.stall, step)]


async def largest_join(client: Client) -> list[Outcome]:
    """Case v."""
    length = await client.context() - 2
    prompts = [client.draw(length) for _ in range(_EIGHT)]
    async with client.running(_SEVEN) as streams:
        step = statistics.median(last_gaps(streams))
        begin = now()
        async with trio.open_nursery() as nursery:
            for prompt in prompts:
                nursery.start_soon(client.send, prompt, 1, Reply())
            await trio.sleep(_WATCHED)
            nursery.cancel_scope.cancel()
        end = now()
        remarks = _ended(streams)
    worst = max(gap for stream in streams for gap in _gaps(stream, begin, end))
    return [Outcome("worst gap", worst, 2 * client.stall + step, step, remarks)]


async def _short_meets(client: Client, what: str, longs: Sequence[int], after: float, step: float) -> Outcome:
    """Send long prompts and, some seconds after, a short one; then leave them all."""
    replies = [Reply() for _ in longs]
    async with trio.open_nursery() as nursery:
        for length, reply in zip(longs, replies, strict=True):
            nursery.start_soon(client.complete, length, 4, reply)
        await trio.sleep(after)
        read = sum(bool(reply.pieces()) for reply in replies)
        worst = await client.wait_of_a_short_one()
        nursery.cancel_scope.cancel()
    remarks = ("every long prompt had been read before",) if read == len(longs) else ()
    return Outcome(what, worst, 3 * (client.stall + step), step, remarks)


@attrs.frozen
class Case:
    """What to run, and the rows that it needs."""

    title: str
    run: Callable[[Client], Awaitable[list[Outcome]]]
    rows: int


_CASES = {
    "i": Case("seven streams run, 1,500 tokens join", long_joins, _SEVEN + 1),
    "ii": Case("the same, then 20 tokens join", short_while_seven_run, _SEVEN + 2),
    "iii": Case("20 tokens meet 3,000", short_meets_one, 2),
    "iv": Case("20 tokens meet eight times 1,500", short_meets_eight, _EIGHT + 1),
    "v": Case("seven streams run, eight of the largest join", largest_join, _SEVEN + _EIGHT),
}


# --- running and reporting --------------------------------------------------------------------


async def measure(client: Client, name: str, repeats: int, pids: Sequence[int]) -> bool:
    """Run a case so many times; a line for each measurement of it. True if all bounds were kept."""
    print(f"{name}: {_CASES[name].title}", flush=True)
    outcomes: list[Outcome] = []
    for _ in range(repeats):
        await client.idle()
        await quiet(*pids)
        meter = Meter(*pids)
        measured = await _CASES[name].run(client)
        others = meter.stop().others
        note = (f"others used {others:.0%}",) if pids and others > DISTURBED else ()
        outcomes += [attrs.evolve(one, remarks=one.remarks + note) for one in measured]
    for what in dict.fromkeys(one.what for one in outcomes):
        _print([one for one in outcomes if one.what == what])
    return all(one.met for one in outcomes)


def _print(outcomes: list[Outcome]) -> None:
    worst = max(outcomes, key=lambda one: one.worst / one.bound)
    every = ", ".join(f"{1000 * one.worst:.0f}" for one in outcomes)
    verdict = "PASS" if all(one.met for one in outcomes) else "FAIL"
    print(
        f"    {worst.what:22} worst {1000 * worst.worst:6.0f} ms   bound {1000 * worst.bound:6.0f} ms"
        f"   step {1000 * worst.step:4.0f} ms   {verdict}   (all: {every})",
        flush=True,
    )
    for i, one in enumerate(outcomes, 1):
        for remark in one.remarks:
            print(f"        repeat {i}: {remark}")


async def run(options: argparse.Namespace) -> bool:
    """Measure the server that the options name, or those that the cases need."""
    model = options.model or default_model()
    prompts = TokenPrompts(model, drawn=False, seed=options.seed)
    if options.url:
        return await _measure_all(options, prompts, options.url, options.cases, [])
    env, met = environment(), True
    for batch in (8, 16):
        cases = [name for name in options.cases if (_CASES[name].rows > 8) == (batch > 8)]
        if not cases:
            continue
        flags = ("--batch", str(batch), "--max-decode-stall", str(options.max_decode_stall))
        async with start("motet", motet(*flags), model, env) as server:
            met &= await _measure_all(options, prompts, server.url, cases, [server.pid])
    return met


async def _measure_all(
    options: argparse.Namespace,
    prompts: TokenPrompts,
    url: str,
    cases: Sequence[str],
    pids: Sequence[int],
) -> bool:
    met = True
    async with connect(url) as http:
        client = Client(http, prompts, options.max_decode_stall / 1000)
        rows = (await client.statistics())["batch"]["configured"]
        await client.step()  # the first of everything
        for name in cases:
            if _CASES[name].rows > rows:
                print(f"{name}: left out: {_CASES[name].rows} requests, a batch of {rows}")
                continue
            met &= await measure(client, name, options.repeats, pids)
    return met


def _case_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(_CASES):
        raise argparse.ArgumentTypeError(f"no such cases: {', '.join(sorted(unknown))}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--url", help="a running server to measure; default: start one")
    parser.add_argument("--cases", type=_case_names, default=list(_CASES), metavar="i,ii,...")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-decode-stall", type=int, default=200, metavar="MS")
    parser.add_argument("--seed", default="0", help="what the prompts follow from")
    options = parser.parse_args()
    try:
        met = trio.run(partial(run, options))
    except (ServerDied, RequestFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"all bounds: {'PASS' if met else 'FAIL'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
