"""Tool calls of all of mlx-lm's parsers, at every split of their text into tokens."""

import itertools
import json
import pkgutil
import random
import re
from collections.abc import Iterator
from typing import Any

import mlx_lm.tool_parsers
import pytest

from motet.engine.output import Output
from motet.engine.reasoning import Markup
from tool_samples import SAMPLES, TOOLS
from toy import Heard, Toy, hear

THINK = ("<think>", "</think>")


class Written:
    """A sample as a model writes it: thinking, some words, the calls."""

    def __init__(self, name: str, *, marked: bool) -> None:
        self.sample = SAMPLES[name]
        module = Toy((), tools=name)
        self.start, self.end = module.tool_call_start, module.tool_call_end
        self.name = name
        calls = "\n".join(self.start + section + self.end for section in self.sample.sections)
        self.text = f"<think>\nHm: é?\n</think>\n\nI'll look.\n{calls}"
        markers = {self.start, self.end, *self.sample.special, *THINK} - {""}
        self.special = tuple(sorted(markers, key=len, reverse=True)) if marked else ()

    def toy(self, *cuts: list[bytes]) -> Toy:
        return Toy(itertools.chain(*cuts), self.special, tools=self.name, think=THINK)

    def hear(self, pieces: list[bytes], **options: Any) -> Heard:
        return hear(self.toy(pieces), pieces, **{"tools": TOOLS, **options})

    def pieces(self, text: str) -> list[bytes]:
        """The text with its special tokens apart."""
        if not self.special:
            return [text.encode()]
        parts = re.split("(" + "|".join(map(re.escape, self.special)) + ")", text)
        return [part.encode() for part in parts if part]

    def cut(self, text: str, edges: set[int]) -> list[bytes]:
        """Pieces that end at these bytes too, where no special token is there."""
        cut, start = [], 0
        for piece in self.pieces(text):
            inner = [] if piece.decode() in self.special else sorted(edges)
            here = [0, *(e - start for e in inner if 0 < e - start < len(piece)), len(piece)]
            cut += [piece[a:b] for a, b in itertools.pairwise(here)]
            start += len(piece)
        return cut

    def splits(self) -> Iterator[list[bytes]]:
        """Into two at every byte, into single bytes, and some at random."""
        size = len(self.text.encode())
        draw = random.Random(self.name)
        edges = [{edge} for edge in range(size)] + [set(range(size))]
        edges += [set(draw.sample(range(size), 12)) for _ in range(20)]
        seen = {tuple(self.cut(self.text, these)) for these in edges}  # special tokens are not cut
        yield from map(list, seen)


def test_every_parser_has_a_sample() -> None:
    assert set(SAMPLES) == {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}


@pytest.mark.parametrize("marked", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("name", SAMPLES)
def test_calls_survive_every_split(name: str, marked: bool) -> None:
    written = Written(name, marked=marked)
    whole = written.hear(written.pieces(written.text), at_once=True)
    assert (whole.reasoning, whole.text, whole.called) == ("Hm: é?", "I'll look.", True)
    assert [(n, json.loads(arguments)) for n, arguments in whole.calls] == list(written.sample.calls)
    assert len(set(whole.ids)) == 2
    splits = list(written.splits())
    for pieces in splits:
        assert written.hear(pieces) == whole
    print(f"{name:15} {len(splits):4} splits: one thought, one text, {len(whole.calls)} calls")


@pytest.mark.parametrize("name", SAMPLES)
def test_arguments_grow_where_the_form_allows_it(name: str) -> None:
    """By letters they are told by letters, not at the end."""
    written = Written(name, marked=False)
    pieces = written.cut(written.text, set(range(len(written.text.encode()))))
    output = Output(Markup(written.toy(pieces)), begins="normal", tools=TOOLS)
    deltas = [p for t in written.toy(pieces).ids(pieces) for p in output.push([t])[0] if p.kind == "call"]
    first = [piece for piece in deltas if piece.call == 0]
    assert (len(first) > 10) == written.sample.grows
    if not written.sample.grows:
        assert len(first) == 1


def mutated(text: str, draw: random.Random) -> str:
    """The text with something wrong in it."""
    a, b = sorted(draw.sample(range(len(text) + 1), 2))
    match draw.randrange(6):
        case 0:
            return text[:a] + text[b:]
        case 1:
            return text[:b] + text[a:]
        case 2:
            return text[:a] + draw.choice('{}[]"<>\\:,= \nx5é') + text[a:]
        case 3:
            return text[:a] + text[a + 1 :]
        case 4:
            return text[:a]
        case _:
            return text[:a] + "".join(draw.sample(text[a:b], b - a)) + text[b:]


def is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_malformed_is_text_and_never_an_error(name: str) -> None:
    draw = random.Random(name)
    written = Written(name, marked=False)
    told = {"calls": 0, "text": 0, "broken off": 0}
    for _ in range(100):
        section = mutated(draw.choice(written.sample.sections), draw)
        text = f"So: {written.start}{section}{written.end}"
        size = len(text.encode())
        cut = written.cut(text, set(draw.sample(range(size), min(9, size))))
        limit = draw.random() < 0.5
        heard = written.hear(cut, cut=limit)
        assert heard == written.hear([text.encode()], cut=limit, at_once=True)
        assert {name for name, _ in heard.calls} <= {"get_weather", "search"}
        whole = [is_object(arguments) for _, arguments in heard.calls]
        assert all(whole[:-1])  # a call is broken off only by what ends its section
        assert heard.called == any(whole)
        if heard.calls:
            assert heard.text.startswith("So:")
        else:
            assert heard.text == text
        told["text" if not whole else "calls" if all(whole) else "broken off"] += 1
    print(f"{name:15} of 100 mutations:", *(f"{n} {kind}," for kind, n in told.items()))
