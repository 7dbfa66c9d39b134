"""Agents that share a system prompt and arrive at the same moment: is it read once?

    python benchmarks/prefix.py [--model DIR] [--agents 8] [--system 1000] [--rounds 3]

A fresh engine in this process for each measurement. Told are, as medians over the rounds: seconds until the
first token of a single request on a cold engine; until the slowest first token of all agents on a cold
engine, and the ratio; how many prompt tokens were computed for all agents, over one system prompt and all
tails; and whether each agent's text is the one that it has alone on a cold engine. On a CPU preload OpenBLAS.
"""

import argparse
import random
import statistics
import sys
import time

import attrs
import trio
from prompts import TokenPrompts
from servers import default_model

import motet
from motet import logs

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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a model directory; default: motet's default model")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--system", type=int, default=1000, help="tokens of the system prompt")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logs.configure("WARNING")
    sys.setswitchinterval(0.0005)  # as `motet serve` has it
    trio.run(measure, options.model or default_model(), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
