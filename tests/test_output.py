"""Answer, thinking and stop strings at every split of the text into tokens: nothing lost, nothing extra."""

import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from motet.engine.output import Output
from motet.engine.reasoning import Markup
from tool_samples import TOOLS
from tool_tokenizer import tool_tokenizer
from toy import Heard, Toy, hear

THINK = ("<think>", "</think>")
CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
SEARCH = ("search", '{"query": "x"}')


def cut(text: str, edges: set[int]) -> list[bytes]:
    """The text's bytes in pieces that end at these places."""
    data = text.encode()
    ends = [0, *sorted(edge for edge in edges if 0 < edge < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(ends) if a < b]


def heard(text: str, edges: set[int], *, think: Any = THINK, tools: Any = None, **options: Any) -> Heard:
    pieces = cut(text, edges)
    if tools:
        options["tools"] = TOOLS
    return hear(Toy(pieces, think=think, tools=tools), pieces, **options)


# --- stop strings -----------------------------------------------------------------------------

ALPHABET = "ab <é日\u0301🎉"


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What is told, and the stop string: the first to be completed, and the longest of these."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, length, stop = min(found)
    return text[: end + length], stop


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(ALPHABET, max_size=24),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3),
    edges=st.sets(st.integers(1, 80), max_size=30),
    think=st.sampled_from([None, THINK]),
    limit=st.booleans(),
)
@example(text="a ", stops=["  "], edges={1}, think=THINK, limit=True)
@example(text=" a", stops=["é"], edges={1}, think=THINK, limit=False)
def test_a_stop_string_ends_the_answer_at_every_split(
    text: str, stops: list[str], edges: set[int], think: Any, limit: bool
) -> None:
    """At the end of the text, at its limit and at a stop string; also for a model with markers of its own."""
    said = heard(text, edges, think=think, stops=stops, cut=limit)
    assert (said.text, said.stop) == expected(text, stops)


@pytest.mark.parametrize("text", ["é🎉.e\u0301x", "日本語。", "a👩‍🎉"])
@pytest.mark.parametrize("stop", ["🎉", "\u0301", "本", "zz"])
def test_all_ways_to_cut_a_text(text: str, stop: str) -> None:
    size = len(text.encode())
    for mask in range(1 << (size - 1)):
        edges = {i + 1 for i in range(size - 1) if mask >> i & 1}
        said = heard(text, edges, stops=[stop])
        assert (said.text, said.stop) == expected(text, [stop])


def test_nothing_is_told_after_a_stop_string_and_no_token_is_used() -> None:
    pieces = [b"ab", b"cde", b"f"]
    toy = Toy(pieces, think=THINK)
    output = Output(Markup(toy), ["bc"], begins="normal")
    told, used = output.push(toy.ids(pieces))
    assert ([piece.text for piece in told], used, output.ended) == (["a"], 2, True)
    assert output.finish(cut=False) == []


# --- thinking ---------------------------------------------------------------------------------

PARTS = [
    ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("<think>\n\n</think>\n\nYes.\n", "", "Yes.\n"),
    ("<think>\nHm. \n</think>\n\n Yes", "Hm.", "Yes"),
    ("<think> é🎉</thin </think>x</think", "é🎉</thin", "x</think"),
    ("One<think>Hm", "Hm", "One"),
    (" a < b ", "", " a < b "),
]


@pytest.mark.parametrize(("text", "reasoning", "answer"), PARTS)
def test_thinking_is_told_apart_at_every_split(text: str, reasoning: str, answer: str) -> None:
    for edge in [set(range(99)), *({e} for e in range(len(text.encode())))]:
        said = heard(text, edge)
        assert (said.reasoning, said.text) == (reasoning, answer)


def test_thinking_may_have_begun_in_the_prompt() -> None:
    for edges in ({e} for e in range(20)):
        said = heard("Hm\n</think>\n\nYes", edges, begins="reasoning")
        assert (said.reasoning, said.text) == ("Hm", "Yes")
    assert heard("Hm ", {1}, begins="reasoning", cut=True).reasoning == "Hm "


def test_stop_strings_are_for_the_answer_alone() -> None:
    for edges in ({e} for e in range(40)):
        said = heard("<think>no stop</think>it stops", edges, stops=["stop"])
        assert (said.reasoning, said.text, said.stop) == ("no stop", "it ", "stop")
    said = heard("a s<think>top</think>", set(), stops=["stop"])
    assert (said.text, said.reasoning, said.stop) == ("a s", "top", None)


def test_a_continuation_has_no_parts() -> None:
    text = " <think>a</think>" + CALL
    assert heard(text, {3, 9}, begins=None, tools="json_tools").text == text


def test_thinking_is_counted() -> None:
    pieces = [b"<think>", b"a", b"b", b"</think>", b"c"]
    toy = Toy(pieces, think=THINK)
    output = Output(Markup(toy), begins="normal")
    output.push(toy.ids(pieces))
    assert output.reasoning_tokens == 3  # with the marker that ends it


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("user:hi.assistant:", "normal"),
        ("user:hi.assistant:<think>", "reasoning"),
        ("user:hi.assistant:<think>\n", "reasoning"),
        ("user:hi.assistant:<think>\n\n</think>\n\n", "normal"),
        ("user:<think>.assistant:", "normal"),
        ("", "normal"),
    ],
)
def test_the_prompts_end_says_whether_thinking_is_open(prompt: str, begins: str) -> None:
    tokenizer = tool_tokenizer()
    assert Markup(tokenizer).begins(tokenizer.encode(prompt)) == begins


# --- special tokens ---------------------------------------------------------------------------


def test_special_tokens_are_not_told_but_mark() -> None:
    special = ["<think>", "</think>", "<|x|>", "<"]
    pieces = [b"<think>", b"a<|x|", b"<|x|>", b"b", b"</think>", b"c", b"<", b"d", b"<|x|>"]
    said = hear(Toy(pieces, special, think=THINK), pieces)
    assert (said.reasoning, said.text) == ("a<|x|b", "cd")


def test_a_marker_of_several_special_tokens() -> None:
    """One that does not come to its end is not told either."""
    special = ["<|open|>", "<|sep|>", "<|close|>"]
    think = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    pieces = [b"<|open|>", b"think", b"<|sep|>", b"a", b"<|close|>", b"th", b"ink", b"<|sep|>"]
    pieces += [b"<|open|>", b"resp", b"<|sep|>", b"b", b"<|open|>", b"th"]
    said = hear(Toy(pieces, special, think=think), pieces)
    assert (said.reasoning, said.text) == ("a", "respbth")


# --- calls and thinking -----------------------------------------------------------------------


def test_calls_only_have_no_text() -> None:
    for edges in ({e} for e in range(99)):
        said = heard(f"<think>\nHm\n</think>\n\n{CALL}\n{CALL}\n", edges, tools="json_tools")
        assert said == Heard("", "Hm", [SEARCH] * 2, order=["reasoning", "call"], called=True)


def test_a_marker_that_thinking_speaks_of_is_thinking() -> None:
    text = f"<think>I use <tool_call> tags</think>{CALL}"
    malformed = f"<think>as <tool_call>x</tool_call> does</think>{CALL}"
    for edges in ({e} for e in range(99)):
        said = heard(text, edges, tools="json_tools")
        assert (said.reasoning, said.text, said.calls) == ("I use <tool_call> tags", "", [SEARCH])
        said = heard(malformed, edges, tools="json_tools")
        assert (said.reasoning, said.calls) == ("as <tool_call>x</tool_call> does", [SEARCH])


def test_a_call_within_thinking_is_a_call() -> None:
    said = heard(f"<think>Hm {CALL}Done", {9}, tools="json_tools")
    assert (said.reasoning, said.calls, said.text) == ("Hm", [SEARCH], "Done")


def test_markers_of_calls_are_text_where_no_tools_are_offered() -> None:
    said = hear(Toy([CALL.encode()], tools="json_tools"), [CALL.encode()])
    assert (said.text, said.calls) == (CALL, [])


def test_a_marker_within_arguments_is_text() -> None:
    arguments = '{"query": "</tool_call> \\"<think> {", "options": {"a": [1, {}]}}'
    call = f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'
    for edges in ({e} for e in range(len(call))):
        said = heard(call + "ok", edges, tools="json_tools", stops=["query"])
        assert (said.calls, said.text) == ([("search", arguments)], "ok")


def test_line_breaks_in_arguments_are_escaped() -> None:
    said = heard(CALL.replace("x", "a\nb\t"), {50}, tools="json_tools")
    assert said.calls == [("search", '{"query": "a\\u000ab\\u0009"}')]


def test_a_tool_that_was_not_offered_is_not_called() -> None:
    text = f"So {CALL.replace('search', 'delete')} ok"
    for edges in ({e} for e in range(99)):
        said = heard(text, edges, tools="json_tools")
        assert (said.text, said.calls, said.called) == (text, [], False)


def test_a_call_that_its_limit_cut_is_not_whole() -> None:
    half = CALL[: CALL.index("x") + 1]
    said = heard(half, {9}, tools="json_tools", cut=True)
    assert (said.calls, said.called, said.text) == ([("search", '{"query": "x')], False, "")
    early = CALL[: CALL.index("arguments")]
    assert heard(early, {9}, tools="json_tools", cut=True).text == early


def test_an_end_without_its_marker_ends_a_call() -> None:
    said = heard(CALL.removesuffix("</tool_call>"), {9}, tools="json_tools")
    assert (said.calls, said.called) == ([SEARCH], True)


def test_a_reply_may_be_held_to_one_call() -> None:
    for edges in ({e} for e in range(150)):
        said = heard(f"a{CALL}{CALL}b", edges, tools="json_tools", parallel=False)
        assert (said.calls, said.called, said.text) == ([SEARCH], True, "a")


def test_stop_strings_apply_to_what_proves_to_be_no_call() -> None:
    said = heard("a <tool_call>b stop</tool_call>", {3, 9}, tools="json_tools", stops=["stop"])
    assert (said.text, said.stop) == ("a <tool_call>b ", "stop")


# --- other forms ------------------------------------------------------------------------------


def test_a_response_format_with_headers() -> None:
    """Muse Spark's, as mlx-lm has it."""
    call = '<atem:function_calls><atem:invoke name="search"></atem:invoke></atem:function_calls>'
    text = "assistant to=self<|message|>Hm<|eom|>assistant to=user<|message|>Hi<|eom|>" + call
    for edges in ({e} for e in range(len(text))):
        pieces = cut(text, edges)
        toy = Toy(pieces, tools="muse_spark", response_format=RESPONSE_FORMAT)
        said = hear(toy, pieces, begins="header", tools=TOOLS)
        assert (said.reasoning, said.text, said.calls) == ("Hm", "Hi", [("search", "{}")])


def test_structural_markers_are_not_told() -> None:
    pieces = [b"<|open|>response<|sep|>Hi<|close|>respo", b"nse<|sep|>"]
    structural = ("<|open|>response<|sep|>", "<|close|>response<|sep|>")
    assert hear(Toy(pieces, structural=structural), pieces).text == "Hi"
