"""Log-probabilities on their way to the caller: one for each token whose text is told, with that text."""

import itertools
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as some
from tokenizers import Tokenizer, decoders, models

import families
from heard import Heard
from motet.actors.emitter import emitter
from motet.channels import caller
from motet.channels.emitter import Finish, ToEmitter, TokenLogprob, Tokens
from motet.channels.request import Sampling, Work
from motet.engine.batch import Batch
from motet.engine.group import Group
from motet.engine.output import Output
from motet.engine.reasoning import Markup
from motet.engine.row import Row
from motet.engine.session import SamplingSession
from motet.engine.vocabulary import Vocabulary
from toy import Toy

TOKENIZER = families.tokenizer()
END = 1000
"""An end token."""


def entry(token: int) -> TokenLogprob:
    return TokenLogprob(-float(token), ((token, -float(token)), (0, -9.0)))


@attrs.define
class Told:
    """What a caller was told of one row."""

    events: list[Any]

    @property
    def entries(self) -> list[caller.Logprob]:
        said = [e for e in self.events if isinstance(e, caller.Text | caller.Reasoning)]
        return [logprob for event in said for logprob in event.logprobs]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, caller.Text))

    @property
    def finished(self) -> caller.Finished:
        (end,) = [e for e in self.events if isinstance(e, caller.Finished)]
        assert end is self.events[-1]
        return end


def tell(
    tokenizer: Any,
    messages: Sequence[Sequence[int]],
    finish: Finish = "length",
    *,
    asks: bool = True,
    **options: Any,
) -> Told:
    """What an emitter makes of messages of tokens, the last of which ends the row."""
    work = Work(7, (1, 2), 999, Sampling(logprobs=2 if asks else None), frozenset([END]))
    output = partial(Output, Markup(tokenizer), **options)

    async def run() -> list[Any]:
        send, inbox = trio.open_memory_channel[ToEmitter](len(messages))
        to_caller, events = trio.open_memory_channel[caller.ToCaller](9999)
        for i, tokens in enumerate(messages):
            logprobs = tuple(map(entry, tokens)) if asks else ()
            send.send_nowait(Tokens(tuple(tokens), finish if i == len(messages) - 1 else None, logprobs))
        await emitter(
            inbox, to_caller, Heard(), work, 0, output, Vocabulary(tokenizer), trio.CapacityLimiter(1)
        )
        return [event async for event in events]

    return Told(trio.run(run))


def parted(tokens: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(tokens)}), len(tokens)]
    return [tokens[a:b] for a, b in itertools.pairwise(edges)]


def data_of(entries: Sequence[caller.Logprob]) -> bytes:
    return b"".join(one.chosen.data for one in entries)


TEXT = some.text(alphabet="abc é日👩\u0301", min_size=1, max_size=14)
STOPS = some.lists(some.text(alphabet="abcé日", min_size=1, max_size=3), max_size=3)
CUTS = some.lists(some.integers(0, 40), max_size=6)


@settings(max_examples=150, deadline=None)
@given(TEXT, STOPS, CUTS, some.booleans(), some.booleans())
def test_each_token_whose_text_is_told_has_one_entry_which_comes_with_it(
    text: str, stops: list[str], cuts: list[int], single: bool, ends: bool
) -> None:
    """Over every way to deliver the tokens, characters of several tokens, and stop strings."""
    tokens = [t for letter in text for t in TOKENIZER.encode(letter)] if single else TOKENIZER.encode(text)
    told = tell(
        TOKENIZER,
        parted([*tokens, END] if ends else tokens, cuts),
        "stop" if ends else "length",
        stops=stops,
    )
    assert [one.chosen.logprob for one in told.entries] == [-t for t in tokens[: len(told.entries)]]
    whole = told.text.encode()
    if told.finished.stop is None:
        assert data_of(told.entries) == whole == text.encode()
        assert told.finished.usage.completion_tokens == len(told.entries) + ends
    else:
        assert data_of(told.entries).startswith(whole)
        assert len(data_of(told.entries[:-1])) < len(whole) or not told.entries
    said, entries = b"", list[caller.Logprob]()
    for event in told.events[:-1]:
        assert isinstance(event, caller.Text)
        entries += event.logprobs
        said += event.text.encode()
        # The text is never ahead of its entries, and they are not ahead of it by a whole token.
        assert data_of(entries).startswith(said)
        assert not event.logprobs or len(data_of(entries[:-1])) < len(said)


def test_a_row_that_does_not_ask_gets_none() -> None:
    told = tell(TOKENIZER, [TOKENIZER.encode("some words")], asks=False)
    assert told.text == "some words" and not told.entries


def test_half_a_character_at_the_end_has_its_entries() -> None:
    """Its text cannot be told, but its bytes are known."""
    first, second, *_ = TOKENIZER.encode("👩")
    a = TOKENIZER.encode("a")
    told = tell(TOKENIZER, [[*a, first], [second]])
    assert data_of(told.entries) == b"a" + "👩".encode()[:2]
    assert [one.chosen.token for one in told.entries] == ["a", "\ufffd", "\ufffd"]


def test_thinking_has_its_entries_and_markers_have_none() -> None:
    pieces = [b"<think>", b"\n", b"hm", b" so", b"\n", b"</think>", b"\n\n", b"well", b" then"]
    toy = Toy(pieces, ("<think>", "</think>"), think=("<think>", "</think>"))
    told = tell(toy, [[token] for token in toy.ids(pieces)], begins="normal")
    said = [(type(e).__name__, e.text, data_of(e.logprobs)) for e in told.events[:-1]]
    assert said == [
        ("Reasoning", "hm", b"hm"),
        ("Reasoning", " so", b" so"),
        ("Text", "well", b"well"),
        ("Text", " then", b" then"),
    ]


def test_calls_have_none_but_what_proves_to_be_no_call_has() -> None:
    call = [b"<tool_call>", b'{"name": "f", ', b'"arguments": {}}', b"</tool_call>"]
    broken = [b"<tool_call>", b'{"nam', b"</tool_call>"]
    toy = Toy([b"look: ", b"after", *call, *broken], tools="json_tools")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    good = tell(toy, [[t] for t in toy.ids([b"look: ", *call])], begins="normal", tools=tools)
    assert any(isinstance(e, caller.ToolCall) for e in good.events)
    assert data_of(good.entries) == b"look: "
    bad = tell(toy, [[t] for t in toy.ids([b"look: ", *broken, b"after"])], begins="normal", tools=tools)
    assert bad.text.encode() == data_of(bad.entries) == b"look: " + b"".join(broken) + b"after"


# --- tokens as bytes --------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(some.text(max_size=20))
def test_the_bytes_of_a_texts_tokens_are_the_texts(text: str) -> None:
    vocabulary = Vocabulary(TOKENIZER)
    assert b"".join(map(vocabulary.data, TOKENIZER.encode(text))) == text.encode()


@pytest.mark.parametrize(
    ("decoder", "want"),
    [
        (
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
            [b" the", b"\xe2", b"a"],
        ),
        (decoders.Metaspace(), [b" the", b"<0xE2>", b"a"]),
    ],
)
def test_tokens_of_other_kinds_are_read_as_their_decoder_does(decoder: Any, want: list[bytes]) -> None:
    toy = Toy([], ["<end>"])
    backend = Tokenizer(models.WordLevel({"▁the": 0, "<0xE2>": 1, "a": 2}, "a"))
    backend.decoder = decoder
    toy._tokenizer.backend_tokenizer = backend
    vocabulary = Vocabulary(toy)
    assert [vocabulary.data(token) for token in range(3)] == want
    assert vocabulary.data(99) == b""  # rows of the embedding that the tokenizer does not know


def test_a_special_token_is_its_own_text() -> None:
    (end,) = TOKENIZER.eos_token_ids
    assert Vocabulary(TOKENIZER).data(end) == b"<|end|>"


# --- on the device ----------------------------------------------------------------------------


def test_what_nobody_reads_is_released() -> None:
    """A row that leaves while its step is unread: with the last row at once, else when the step is read."""
    model, _ = families.loader("llama")()
    group = Group(model.module)

    def join(number: int) -> None:
        session = SamplingSession(logprobs=5)
        batch = Batch([Row(number, 0, session, frozenset(), 99)], model.caches())
        batch.read(model.module, [[5, 6, 7]])
        batch.begin(model.module, [8])
        group.join(batch)

    def captured() -> weakref.ref[Any]:
        assert group._unread is not None and group._unread.drawn.captured is not None
        return weakref.ref(group._unread.drawn.captured)

    join(1)
    group.step()
    alone = captured()
    group.drop([1])
    assert alone() is None
    join(2)
    join(3)
    group.step()
    together = captured()
    group.drop([2])
    assert [one.row.number for one in group.settle()] == [3]
    assert together() is None
