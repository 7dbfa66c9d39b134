"""A JSON object that grows, against the standard library's parser."""

import itertools
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.engine.jsontext import GrowingObject

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def grown(text: str, edges: set[int]) -> tuple[str, str, str]:
    """What was taken of a text that comes in pieces, what was left, and how it ended."""
    growing, taken = GrowingObject(), ""
    ends = [0, *sorted(edge for edge in edges if edge < len(text)), len(text)]
    for start, end in itertools.pairwise(ends):
        piece, rest = growing.push(text[start:end])
        taken += piece
        if growing.state != "open":
            return taken, rest + text[end:], growing.state
    return taken, "", growing.state


def is_object(text: str) -> bool:
    """Whether it is one, and strict JSON."""
    try:
        return isinstance(json.loads(text, parse_constant=int), dict)  # NaN and Infinity are none
    except ValueError:
        return False


@settings(max_examples=100, deadline=None)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), st.sets(st.integers(0, 300), max_size=9))
@example({"a": [{}, [], {"b": -1.5e-7, 'é\\"\n🎉': "\x00"}]}, True, 1, {3})
def test_an_object_is_taken_whole(
    value: dict[str, object], plain: bool, indent: int | None, edges: set[int]
) -> None:
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    assert grown(text + '} {"', edges) == (text, '} {"', "done")
    for end in edges | {len(text) - 1}:
        assert end >= len(text) or grown(text[:end], edges) == (text[:end], "", "open")


@settings(max_examples=200, deadline=None)
@given(OBJECTS, st.data())
@example({"a": 1}, None)
def test_what_is_taken_as_whole_is_an_object_and_what_breaks_is_none(
    value: dict[str, object], data: st.DataObject | None
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if data is not None:
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text('{}[]",:\\e1.-tn u', max_size=3)) + text[at + 1 :]
    taken, rest, state = grown(text, set(range(len(text))))
    assert (state == "done") == is_object(taken)
    if state == "broken":
        assert not is_object(text) and taken + rest == text


def test_control_characters_in_strings_are_escaped() -> None:
    taken, _, state = grown('{"a\n": "b\t"}', {4})
    assert state == "done" and json.loads(taken) == {"a\n": "b\t"}
