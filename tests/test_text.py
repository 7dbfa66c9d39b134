"""From tokens to text at every split: nothing lost, nothing extra, no character broken."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import families
from motet.engine.output import Output
from motet.engine.reasoning import Markup

TOKENIZER = families.tokenizer()
MARKUP = Markup(TOKENIZER)
SAMPLES = [
    "plain words here",
    " leading space",
    "naïve café",
    "日本語テキスト",
    "👩‍👩‍👧 family 🎉",
    "e\u0301 combined",
]


def pushed(stream: Output, tokens: Sequence[int]) -> str:
    """The text that these tokens make certain."""
    return "".join(piece.text for piece in stream.push(tokens)[0])


def whole(tokens: list[int], splits: list[int], stops: tuple[str, ...] = ()) -> tuple[str, bool]:
    """The text when the tokens come in pieces."""
    stream = Output(MARKUP, stops)
    text = ""
    edges = [0, *sorted(splits), len(tokens)]
    for start, end in itertools.pairwise(edges):
        new = pushed(stream, tokens[start:end])
        assert not new.endswith("\ufffd")
        text += new
        if stream.ended:
            return text, True
    return text + "".join(piece.text for piece in stream.finish(cut=False)), False


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_survives_every_split(sample: str) -> None:
    tokens = TOKENIZER.encode(sample)
    for split in range(len(tokens) + 1):
        assert whole(tokens, [split]) == (sample, False)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab E日🎉", max_size=30),
    stops=st.lists(st.text("ab E日🎉", min_size=1, max_size=4), max_size=3),
    splits=st.lists(st.integers(0, 60), max_size=8),
)
def test_stop_strings_cut_before_the_first_to_be_completed(
    text: str, stops: list[str], splits: list[int]
) -> None:
    tokens = TOKENIZER.encode(text)
    splits = [min(split, len(tokens)) for split in splits]
    ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    # The first to be completed; of those that end together the longest.
    expected = text[: min(ends)[0] + min(ends)[1]] if ends else text
    assert whole(tokens, splits, tuple(stops)) == (expected, bool(ends))


def test_special_tokens_are_never_text() -> None:
    tokens = [*TOKENIZER.encode("ab"), *TOKENIZER.eos_token_ids, *TOKENIZER.encode("cd")]
    assert whole(tokens, [])[0] == "abcd"


def test_a_character_cut_by_the_end_is_dropped() -> None:
    tokens = TOKENIZER.encode("a🎉")
    assert whole(tokens[:-1], [])[0] == "a"


def test_bytes_of_no_character_are_not_held_for_ever() -> None:
    half = TOKENIZER.encode("🎉")[0]
    stream = Output(MARKUP)
    texts = [pushed(stream, [half]) for _ in range(16)]
    assert any("\ufffd" in text for text in texts)
    assert pushed(stream, TOKENIZER.encode("ok")).endswith("ok")


def test_a_continuation_begins_where_the_prompt_ends() -> None:
    prompt = TOKENIZER.encode("the quick")
    assert pushed(Output(MARKUP, after=prompt), TOKENIZER.encode(" brown")) == " brown"
    cut = TOKENIZER.encode("a🎉")[:-1]  # ends within a character, which is not told again
    assert pushed(Output(MARKUP, after=cut), TOKENIZER.encode("b")) == "b"
