"""How long a person's request waits behind background work: its time to the first token.

    python benchmarks/fairness.py [--model DIR] [--cases reserved displaced] [--repeats 3]

    reserved   sixteen background streams, as many of them running as the batch of eight lets; an
               interactive prompt of 20 tokens arrives.
    displaced  the same with an interactive stream in the reserved place: a background row gives way. It
               must go on afterwards: no stream ends early or in an error.

Bound: an idle server's time + 3 x (stall target + a step). A step is the median gap of the running streams
just before. Times are the client's, at the arrival of a chunk.
"""

import argparse
import statistics
import sys
from functools import partial
from typing import Any

import attrs
import httpx
import trio
from clients import Reply, RequestFailed, body, connect, fetch
from machine import DISTURBED, Meter, quiet
from prompts import TokenPrompts
from servers import ServerDied, default_model, environment, motet, start
from stalls import last_gaps

_CASES = ("reserved", "displaced")
_BATCH = 8
_BACKGROUND = 16
_SHORT = 20
_ENDLESS = 4000  # tokens: streams that run are left before their end
_READS = 12  # of each running stream before the short prompt comes
_AFTER = 16  # tokens that a displaced stream is to give when its place is free again


@attrs.frozen
class Outcome:
    """One measurement; seconds."""

    idle: float
    first: float
    step: float
    stall: float
    remark: str

    @property
    def bound(self) -> float:
        return self.idle + 3 * (self.stall + self.step)


class Client:
    """Sends fresh prompts to one server."""

    def __init__(self, http: httpx.AsyncClient, prompts: TokenPrompts) -> None:
        self._http = http
        self._prompts = prompts

    async def send(self, max_tokens: int, reply: Reply, priority: str = "interactive") -> Reply:
        """Send a short prompt and read its stream to the end."""
        asked = body(max_tokens, prompt=self._prompts.draw(_SHORT), priority=priority)
        await fetch(self._http, "/v1/completions", asked, reply)
        return reply

    async def batch(self) -> dict[str, Any]:
        """The server's numbers of rows."""
        answer: dict[str, Any] = (await self._http.get("/stats")).raise_for_status().json()["batch"]
        return answer

    async def idle(self) -> None:
        """Wait until the server has let go of everything."""
        waiting = ("active_rows", "preparing_rows", "pending_rows")
        while True:
            batch = await self.batch()
            if not any(batch[name] for name in waiting):
                return
            await trio.sleep(0.2)


def _told(reply: Reply) -> int:
    """Reads with text: a stream that waits gets comments."""
    return sum(data.startswith(b"data: ") for _, data in reply.reads)


async def _until_running(replies: list[Reply], count: int, reads: int) -> list[Reply]:
    """The streams that run, when so many of them have begun and all those are some chunks on."""
    while len(running := [reply for reply in replies if _told(reply)]) < count:  # noqa: ASYNC110 - the client tells nobody of a read
        await trio.sleep(0.005)
    aims = [_told(reply) + reads for reply in running]
    while any(_told(reply) < aim for reply, aim in zip(running, aims, strict=True)):  # noqa: ASYNC110 - likewise
        await trio.sleep(0.005)
    return running


async def measure(client: Client, stall: float, *, taken: bool) -> Outcome:
    """The short prompt's wait, with the reserved place ``taken`` or free."""
    idle = statistics.median([(await client.send(4, Reply())).first for _ in range(3)])
    before = (await client.batch())["displaced_rows"]
    async with trio.open_nursery() as nursery:
        replies = [Reply() for _ in range(_BACKGROUND + taken)]
        for i, reply in enumerate(replies):
            priority = "interactive" if taken and i == 0 else "background"
            nursery.start_soon(client.send, _ENDLESS, reply, priority)
        running = await _until_running(replies, _BATCH - (not taken), _READS)
        step = statistics.median(last_gaps(running))
        pending = (await client.batch())["pending_rows"]
        first = (await client.send(4, Reply())).first
        displaced = (await client.batch())["displaced_rows"] - before
        # All that ran before run again.
        await _until_running(running, len(running), _AFTER)
        nursery.cancel_scope.cancel()
    ended = sum(reply.ended is not None for reply in replies)
    remark = f"{len(running)} ran, {pending} queued, {displaced} displaced, {ended} ended early"
    return Outcome(idle, first, step, stall, remark)


async def run(options: argparse.Namespace) -> bool:
    """Measure a server of its own."""
    model = options.model or default_model()
    prompts = TokenPrompts(model, drawn=False, seed=options.seed)
    flags = ("--batch", str(_BATCH), "--max-decode-stall", str(options.max_decode_stall))
    met = True
    async with start("motet", motet(*flags), model, environment()) as server, connect(server.url) as http:
        client = Client(http, prompts)
        await client.send(2 * _READS, Reply())  # the first of everything
        for name in options.cases:
            for _ in range(options.repeats):
                await client.idle()
                await quiet(server.pid)
                meter = Meter(server.pid)
                stall = options.max_decode_stall / 1000
                outcome = await measure(client, stall, taken=name == "displaced")
                others = meter.stop().others
                met &= outcome.first <= outcome.bound
                _print(name, outcome, f", others used {others:.0%}" if others > DISTURBED else "")
    return met


def _print(name: str, outcome: Outcome, note: str) -> None:
    verdict = "PASS" if outcome.first <= outcome.bound else "FAIL"
    print(
        f"{name:10} first token {1000 * outcome.first:5.0f} ms   idle {1000 * outcome.idle:4.0f} ms"
        f"   bound {1000 * outcome.bound:5.0f} ms   step {1000 * outcome.step:3.0f} ms   {verdict}"
        f"   ({outcome.remark}{note})",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=_CASES)
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
