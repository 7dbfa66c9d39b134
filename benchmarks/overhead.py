"""What motet's engine and its HTTP front cost on top of the bare mlx_lm BatchGenerator.

    python benchmarks/overhead.py [--model DIR | --two-layer | --random-llama 1b|8b]
                                  [--streams 1,2,4,8] [--rounds 5] [--max-tokens 256]

The same prompts, as token ids, are decoded by (a) mlx_lm's BatchGenerator, (b) motet's engine in process,
(c) `motet serve` with a streaming client. Each is a process of its own that loads the model once; two are
idle while the third is measured, and they take turns in every round. Of each are told

    steady      tokens/s from when the last stream has its first token until the first stream ends
    aggregate   tokens/s from submitting all prompts until the last stream ends
    TTFT        mean milliseconds to the first token of prompts that are sent together

and the medians over the rounds of the ratios (b)/(a) and (c)/(a); then where the server's CPU time goes.
Two layers show the cost where it is largest: next to no model is left. Linux only. On a CPU OpenBLAS is
preloaded for all if it is there.
"""

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial

import attrs
import trio
from candidates import Candidate, Decoded, Served, work
from machine import DISTURBED, IDLE, Meter, quiet
from prompts import TokenPrompts
from servers import (
    ServerDied,
    default_model,
    environment,
    motet_with_thread_names,
    random_model,
    start,
)

_TRIES = 3  # times the rounds
_WARM = 16  # tokens
_NAMES = {"a": "bare BatchGenerator", "b": "engine.generate", "c": "motet serve"}


@attrs.frozen
class Round:
    """The three, on one set of prompts."""

    decoded: dict[str, Decoded]
    cpu: dict[str, float]
    """CPU seconds per token of each one's process."""
    others: float
    busy_idlers: bool

    @property
    def disturbed(self) -> bool:
        return self.others > DISTURBED or self.busy_idlers


class Bench:
    """The three candidates and the prompts."""

    def __init__(
        self, candidates: dict[str, Candidate], prompts: TokenPrompts, options: argparse.Namespace
    ) -> None:
        self._candidates = candidates
        self._prompts = prompts
        self._options = options

    def _draw(self, streams: int) -> list[list[int]]:
        return [self._prompts.draw(40 + 12 * i) for i in range(streams)]

    async def warm_up(self, streams: int) -> None:
        """Let every engine meet this number of streams once."""
        prompts = self._draw(streams)
        for candidate in self._candidates.values():
            await candidate.decode(prompts, _WARM)

    async def one_round(self, streams: int, number: int) -> Round:
        """Measure each on the same prompts; who begins goes around."""
        prompts = self._draw(streams)
        pids = [candidate.pid for candidate in self._candidates.values()]
        names = list(self._candidates)
        shift = number % len(names)
        decoded, cpu, others, busy = dict[str, Decoded](), dict[str, float](), list[float](), False
        for name in names[shift:] + names[:shift]:
            candidate = self._candidates[name]
            await quiet(*pids)
            meter = Meter(*pids)
            decoded[name] = await candidate.decode(prompts, self._options.max_tokens)
            use = meter.stop()
            cpu[name] = use.cpu[candidate.pid] / decoded[name].tokens
            others.append(use.others)
            busy = busy or any(use.cores(pid) > IDLE for pid in pids if pid != candidate.pid)
        return Round(decoded, cpu, max(others), busy)


async def measure(bench: Bench, streams: int, rounds: int) -> list[Round]:
    """The rounds of one number of streams; disturbed ones are thrown away and done again."""
    await bench.warm_up(streams)
    kept: list[Round] = []
    for tried in range(_TRIES * rounds):
        one = await bench.one_round(streams, tried)
        speeds = ", ".join(f"({name}) {d.steady:.1f}/s" for name, d in sorted(one.decoded.items()))
        note = "  (disturbed: thrown away)" if one.disturbed else ""
        print(f"{streams} streams: {speeds}, others {one.others:.0%}{note}", file=sys.stderr, flush=True)
        if not one.disturbed:
            kept.append(one)
        if len(kept) == rounds:
            break
    return kept


# --- the report -------------------------------------------------------------------------------


def report(streams: int, rounds: list[Round]) -> None:
    """A block of lines for one number of streams."""
    print(f"\n{streams} streams, {len(rounds)} rounds")
    if not rounds:
        print("  every round was disturbed")
        return
    print(
        "                              steady   ratio   aggregate   ratio     TTFT ms   ratio   CPU ms/token"
    )
    for name, title in _NAMES.items():
        steady = _median(rounds, name, lambda decoded: decoded.steady)
        aggregate = _median(rounds, name, lambda decoded: decoded.aggregate)
        cpu = 1000 * statistics.median(one.cpu[name] for one in rounds)
        ttft = _median(rounds, name, lambda decoded: 1000 * decoded.ttft)
        print(f"  ({name}) {title:20} {steady}  {aggregate}  {ttft}     {cpu:8.3f}")
    print(f"  (c) CPU ms/token by thread: {_by_thread(rounds)}   (main: Trio; others: MLX, BLAS)")


def _by_thread(rounds: list[Round]) -> str:
    served = [one.decoded["c"] for one in rounds]
    tokens = sum(decoded.tokens for decoded in served)
    seconds = {role: sum(d.by_thread[role] for d in served) for role in served[0].by_thread}
    return ", ".join(f"{role} {1000 * used / tokens:.3f}" for role, used in seconds.items())


def _median(rounds: list[Round], name: str, of: Callable[[Decoded], float]) -> str:
    values = [of(one.decoded[name]) for one in rounds]
    ratios = [of(one.decoded[name]) / of(one.decoded["a"]) for one in rounds]
    return f"{statistics.median(values):10.1f}  {statistics.median(ratios):6.3f}"


# --- setting up -------------------------------------------------------------------------------


@contextlib.contextmanager
def _model(options: argparse.Namespace) -> Iterator[str]:
    """The model directory that the options name, made first if it is to be."""
    size = "two-layer" if options.two_layer else options.random_llama
    if size is None:
        yield options.model or default_model()
        return
    tokenizer = ["--tokenizer-of", options.model or default_model()] if options.two_layer else []
    with random_model(size, *tokenizer) as folder:
        yield folder


async def run(model: str, options: argparse.Namespace) -> None:
    """Start the three, measure and report each number of streams."""
    env, batch = environment(), max(8, *options.streams)
    drawn = bool(options.two_layer or options.random_llama)
    prompts = TokenPrompts(model, drawn=drawn, seed=options.seed)
    serve = motet_with_thread_names("--batch", str(batch), "--prompt-cache-bytes", "0")
    async with contextlib.AsyncExitStack() as stack:
        bare = await stack.enter_async_context(work("bare", model, batch, env))
        engine = await stack.enter_async_context(work("motet", model, batch, env))
        server = await stack.enter_async_context(start("motet", serve, model, env))
        bench = Bench({"a": bare, "b": engine, "c": Served(server, prompts)}, prompts, options)
        for streams in options.streams:
            report(streams, await measure(bench, streams, options.rounds))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    made = parser.add_mutually_exclusive_group()
    made.add_argument("--two-layer", action="store_true", help="the model's tokenizer, two layers")
    made.add_argument("--random-llama", choices=["1b", "8b"], help="random weights in bfloat16")
    parser.add_argument("--streams", type=_numbers, default=[1, 2, 4, 8], metavar="N,...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--seed", default="0", help="what the prompts follow from")
    options = parser.parse_args()
    try:
        with _model(options) as model:
            trio.run(partial(run, model, options))
    except ServerDied as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
