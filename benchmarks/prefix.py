"""Agents that share a system prompt and arrive at the same moment: is it read once?

    python benchmarks/prefix.py [--model DIR] [--agents 8] [--system 1000] [--rounds 3]

A fresh engine in this process for each measurement. Told are, as medians over the rounds: seconds until the
first token of a single request on a cold engine; until the slowest first token of all agents on a cold
engine, and the ratio; how many prompt tokens were computed for all agents, over one system prompt and all
tails; and whether each agent's text is the one that it has alone on a cold engine. On a CPU preload OpenBLAS.

    python benchmarks/prefix.py --restart [--system 2000]

measures, over the same rounds, the slowest first token of all agents whose system prompt is in memory, and
of all agents after a restart, when it is on disk; and one request on a cold mlx_lm.server, and then another
with the same system prompt.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time

import attrs
import tokenizers
import trio
from clients import Reply, body, connect, fetch
from prompts import TokenPrompts
from servers import default_model, environment, mlx_lm, start

import motet
from motet import logs
from motet.tuning import tune_process

_TOKENS = 12


@attrs.frozen
class Run:
    """What one engine did with its requests."""

    firsts: list[float]
    texts: list[str]
    computed: int


async def run(model: str, prompts: list[list[int]], *, cache: int = 1 << 30) -> Run:
    """All prompts at the same moment on a cold engine."""
    async with motet.open_engine(model, prompt_cache_bytes=cache) as engine:
        begun = time.perf_counter()
        firsts: dict[int, float] = {}
        texts = [""] * len(prompts)
        requests = [motet.Request(prompt, max_tokens=_TOKENS) for prompt in prompts]
        async with engine.open_rows(requests) as stream:
            async for event in stream:
                firsts.setdefault(event.index, time.perf_counter() - begun)
                if isinstance(event, motet.Text):
                    texts[event.index] += event.text
        return Run(list(firsts.values()), texts, engine.statistics()["tokens"]["prompt"])


async def measure(model: str, options: argparse.Namespace) -> None:
    """Measure and report."""
    singles, slowest, computed, alike = [], [], [], True
    for number in range(options.rounds):
        draw = random.Random(number)
        source = TokenPrompts(model, drawn=False, seed=number)
        system = source.draw(options.system)
        tails = [source.draw(draw.randint(20, 40)) for _ in range(options.agents)]
        prompts = [[*system, *tail] for tail in tails]
        single = await run(model, prompts[:1])
        together = await run(model, prompts)
        singles.append(single.firsts[0])
        slowest.append(max(together.firsts))
        computed.append(together.computed / (len(system) + sum(map(len, tails))))
        cold = [(await run(model, [prompt], cache=0)).texts[0] for prompt in prompts[:: options.agents - 1]]
        alike = alike and cold == together.texts[:: options.agents - 1]
    ratio = statistics.median(a / b for a, b in zip(slowest, singles, strict=True))
    print(f"{options.agents} agents, a system prompt of {options.system} tokens, {options.rounds} rounds")
    print(f"  first token of one alone, cold:   {statistics.median(singles):7.2f} s")
    print(f"  slowest first token of all, cold: {statistics.median(slowest):7.2f} s   ratio {ratio:.2f}")
    print(f"  tokens computed / (one system prompt + all tails): {statistics.median(computed):.3f}")
    print(f"  texts equal the cold ones: {alike}")


async def restarted(model: str, options: argparse.Namespace) -> None:
    """Measure what is warm, before a restart and after it."""
    cold, memory, disk, reading, computed = [], [], [], [], True
    for number in range(options.rounds):
        source = TokenPrompts(model, drawn=False, seed=number)
        system = source.draw(options.system)
        groups = [[[*system, *source.draw(30)] for _ in range(options.agents)] for _ in range(3)]
        with tempfile.TemporaryDirectory() as directory:
            async with motet.open_engine(model, prompt_cache_dir=directory) as engine:
                cold.append(max(await firsts(engine, groups[0][:1])))
                memory.append(max(await firsts(engine, groups[1])))
                await engine.drain(120)
            async with motet.open_engine(model, prompt_cache_dir=directory) as engine:
                disk.append(max(await firsts(engine, groups[2])))
                reading.append(engine.gauges.persister.restoring_seconds)
                tails = sum(len(prompt) - len(system) for prompt in groups[2])
                computed = computed and engine.statistics()["tokens"]["prompt"] <= tails
    upstream = await warm_upstream(model, options)
    median = statistics.median
    ratios = [b / (a + read) for a, b, read in zip(memory, disk, reading, strict=True)]
    print(f"{options.agents} agents, a system prompt of {options.system} tokens, {options.rounds} rounds")
    print(f"  first token of one alone, cold:        {median(cold):7.3f} s")
    print(f"  slowest first token of all, in memory: {median(memory):7.3f} s")
    print(f"  the same after a restart, on disk:     {median(disk):7.3f} s")
    print(f"    of which reading the file:           {median(reading):7.3f} s")
    print(f"  cold : memory : disk                   {_ratio(cold, memory)} : 1 : {_ratio(disk, memory)}")
    print(f"  disk / (memory + reading):             {median(ratios):7.2f}")
    print(f"  computed after the restart are no more than the tails: {computed}")
    print(f"  mlx_lm.server, one request: cold {upstream[0]:.3f} s, warm {upstream[1]:.3f} s")


def _ratio(some: list[float], others: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(some, others, strict=True)):.2f}"


async def firsts(engine: motet.Engine, prompts: list[list[int]]) -> list[float]:
    """Seconds to each row's first token, all at once."""
    begun, told = time.perf_counter(), dict[int, float]()
    requests = [motet.Request(prompt, max_tokens=_TOKENS) for prompt in prompts]
    async with engine.open_rows(requests) as stream:
        async for event in stream:
            told.setdefault(event.index, time.perf_counter() - begun)
    return list(told.values())


async def warm_upstream(model: str, options: argparse.Namespace) -> tuple[float, float]:
    """mlx_lm.server's first token: of a request, and of another with the same system prompt; medians."""
    told: list[tuple[float, float]] = []
    for number in range(options.rounds):
        source = TokenPrompts(model, drawn=False, seed=number)
        system = source.draw(options.system)
        tokenizer = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
        async with start("mlx_lm", mlx_lm(), model, environment()) as server, connect(server.url) as http:
            seconds = []
            for _ in range(2):
                reply = Reply()
                prompt = tokenizer.decode([*system, *source.draw(30)], skip_special_tokens=False)
                await fetch(http, "/v1/completions", body(_TOKENS, prompt=prompt), reply)
                seconds.append(reply.first)
            told.append((seconds[0], seconds[1]))
    return statistics.median(one[0] for one in told), statistics.median(one[1] for one in told)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--system", type=int, default=1000, help="tokens of the system prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--restart", action="store_true", help="measure what is warm, and after a restart")
    options = parser.parse_args()
    logs.configure("WARNING")
    tune_process()
    trio.run(restarted if options.restart else measure, options.model or default_model(), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
