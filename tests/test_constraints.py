"""Grammars, their masks, and the look-up that applies them; on a toy tokenizer, with no model."""

import importlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import families
from motet.engine.constraints import constraint as constraints
from motet.engine.constraints import grammar
from motet.engine.constraints.constraint import Constraint, Grammars, constrained
from motet.engine.constraints.grammar import GrammarError, Marker, after
from motet.engine.constraints.tools import ToolFormat, tool_calls, tool_format

END = 0  # the toy tokenizer's end-of-text token


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(families.tokenizer(), families.VOCABULARY)


def allowed(constraint: Constraint) -> list[int]:
    mask = constraint.mask()
    assert mask is not None
    return np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()  # type: ignore[no-any-return]


def encoded(text: str) -> list[int]:
    return list(families.tokenizer().encode(text))


def decoded(tokens: Sequence[int]) -> str:
    return str(families.tokenizer().decode(tokens))


def walk(grammars: Grammars, text: str, seed: int, most: int = 2000) -> tuple[list[int], Constraint]:
    """Any of the allowed tokens, again and again, until the grammar ends."""
    draw = random.Random(seed)
    constraint, tokens = grammars.constraint(text), []
    while not constraint.over and len(tokens) < most:
        token = draw.choice(allowed(constraint))
        constraint.accept(token)
        if token != END:
            tokens.append(token)
    assert constraint.fault is None
    return tokens, constraint


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["reed", "brass"]},
        "keys": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "keys"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_is_what_the_schema_says(grammars: Grammars, seed: int) -> None:
    tokens, constraint = walk(grammars, grammar.json_schema(SCHEMA), seed)
    value = json.loads(decoded(tokens))
    assert constraint.over
    assert list(value) == ["name", "kind", "keys"] and value["kind"] in ("reed", "brass")
    assert len(value["name"]) <= 8 and len(value["keys"]) <= 3
    assert all(isinstance(key, int) and 0 <= key <= 99 for key in value["keys"])


def test_a_regex_ends_where_nothing_can_follow_and_may_end_where_something_can(grammars: Grammars) -> None:
    fixed, open_ended = (
        grammars.constraint(grammar.regex("a{3}")),
        grammars.constraint(grammar.regex("a{3,}")),
    )
    for token in encoded("aaa"):
        assert END not in allowed(fixed)
        fixed.accept(token)
        open_ended.accept(token)
    assert fixed.over and fixed.mask() is None
    assert not open_ended.over and END in allowed(open_ended)
    open_ended.accept(END)
    assert open_ended.over


def test_where_only_the_empty_text_matches_the_end_is_drawn(grammars: Grammars) -> None:
    assert allowed(grammars.constraint(grammar.regex(""))) == [END]


def test_a_lark_grammar_says_what_may_come(grammars: Grammars) -> None:
    constraint = grammars.constraint(grammar.lark('start: ("do" | "re") " mi"'))
    tokens, _ = walk(grammars, grammar.lark('start: ("do" | "re") " mi"'), 3)
    assert decoded(tokens) in ("do mi", "re mi")
    assert {decoded([token])[0] for token in allowed(constraint)} == {"d", "r"}


def test_what_must_come_is_known_and_is_the_tokenizers_own_spelling(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"quick": {"const": "the lazy dog"}}, "required": ["quick"]}
    text = grammar.json_schema({**schema, "additionalProperties": False})
    constraint, taken = grammars.constraint(text), []
    while not constraint.over:
        (token,) = allowed(constraint)
        assert constraint.forced()[:1] in ((), (token,))
        taken.append(token)
        constraint.accept(token)
    assert decoded(taken) == '{"quick": "the lazy dog"}'
    assert (
        len(taken) <= len(encoded(decoded(taken))) + 2 < len(decoded(taken))
    )  # hardly ever letter by letter
    assert len(grammars.constraint(text).forced()) > 5


def test_a_forced_token_that_is_not_taken_is_the_rows_own_fault(grammars: Grammars) -> None:
    constraint = grammars.constraint(grammar.lark('start: "the lazy dog"'))
    assert constraint.forced()
    constraint.accept(encoded("x")[0])
    assert constraint.fault and constraint.forced() == () and not constraint.over


@pytest.mark.parametrize(
    "text, reason",
    [
        (grammar.json_schema({"not": {"type": "string"}}), "not"),
        (grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (grammar.json_schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (grammar.json_schema({"$ref": "#/nowhere"}), "nowhere"),
        (grammar.json_schema({"type": "string", "format": "bogus"}), "format"),
        (grammar.regex("a("), "unclosed"),
        (grammar.lark("start: missing"), "missing"),
        (grammar.lark("start: " + "(" * 5000 + '"a"' + ")" * 5000), "nested"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(
    grammars: Grammars, text: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        grammars.check(text)


def test_a_schema_cannot_ask_to_be_half_ignored(grammars: Grammars) -> None:
    with pytest.raises(GrammarError):
        grammars.check(grammar.json_schema({"uniqueItems": True, "x-guidance": {"lenient": True}}))


def test_a_tokenizer_that_llguidance_cannot_read_is_refused_when_asked() -> None:
    class Slow:
        _tokenizer: Any = ()
        eos_token_ids = frozenset({0})

    with pytest.raises(GrammarError, match="tokenizer"):
        Grammars(Slow(), 10).check(grammar.json_object())


def test_a_recovered_rows_constraint_stands_where_the_row_was(grammars: Grammars) -> None:
    text = grammar.json_schema(SCHEMA)
    tokens, _ = walk(grammars, text, 1)
    for at in range(len(tokens)):
        ahead = grammars.constraint(text)
        for token in tokens[:at]:
            ahead.accept(token)
        assert allowed(grammars.constraint(text, tokens[:at])) == allowed(ahead)


def test_a_token_that_is_not_allowed_is_the_rows_own_fault(grammars: Grammars) -> None:
    constraint = grammars.constraint(grammar.regex("[0-9]+"))
    constraint.accept(encoded("x")[0])
    assert constraint.fault and constraint.mask() is None and not constraint.over


def test_a_grammar_that_is_too_slow_is_the_rows_own_fault(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "_SLOWEST_FILL", 0)
    constraint = grammars.constraint(grammar.lark('start: "never seen before"'))
    assert constraint.mask() is None and "took more" in (constraint.fault or "")


def test_more_grammars_than_are_kept_are_still_served(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "_KEPT", 2)
    texts = [grammar.regex(f"{letter}+") for letter in "abcde"]
    for text in texts:
        grammars.check(text)
    for text, letter in zip(texts, "abcde", strict=True):
        assert encoded(letter)[0] in allowed(grammars.constraint(text))


# --- the look-up ------------------------------------------------------------------------------


def numpys(logits: mx.array, masks: Sequence[list[int] | None]) -> Any:
    """The same by numpy, token by token."""
    wanted = np.array(logits.astype(mx.float32))
    for row, tokens in zip(wanted, masks, strict=True):
        if tokens is not None:
            forbidden = np.ones(len(row), bool)
            forbidden[[token for token in tokens if token < len(row)]] = False
            row[forbidden] = -np.inf
    return wanted


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("width", [512, 509, 300, 700])
def test_the_look_up_forbids_what_the_masks_do_and_touches_nothing_else(
    grammars: Grammars, width: int, dtype: mx.Dtype
) -> None:
    """Also for logits wider than the tokenizer, whose last tokens it does not have, and for less."""
    texts = [grammar.regex("[a-m]+"), None, grammar.json_object(), None, grammar.regex("[0-9]{2}")]
    logits = mx.random.normal((5, width), key=mx.random.key(1)).astype(dtype)
    for chosen in (texts, [t for t in texts if t]):
        rows = [grammars.constraint(text) if text else None for text in chosen]
        wanted = numpys(logits[: len(rows)], [allowed(row) if row else None for row in rows])
        got = constrained(logits[: len(rows)], rows)
        assert got.dtype == dtype
        assert np.array_equal(np.array(got.astype(mx.float32)), wanted)


def test_rows_that_have_ended_or_failed_are_not_masked(grammars: Grammars) -> None:
    over, failed = grammars.constraint(grammar.regex("a")), grammars.constraint(grammar.regex("a"))
    over.accept(encoded("a")[0])
    failed.accept(encoded("b")[0])
    logits = mx.zeros((3, 512))
    assert constrained(logits, [over, failed, None]) is logits


# --- tool calls -------------------------------------------------------------------------------

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Basel", "Bern"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
"""The second has no arguments."""

HERMES = ToolFormat("json_tools", Marker("<tool_call>"), Marker("</tool_call>"))
FORMATS = [
    HERMES,
    ToolFormat("longcat", Marker("<longcat_tool_call>"), Marker("</longcat_tool_call>")),
    ToolFormat("mistral", Marker("[TOOL_CALLS]"), Marker("")),
    ToolFormat("qwen3_coder", Marker("<tool_call>"), Marker("</tool_call>")),
    ToolFormat("glm47", Marker("<tool_call>"), Marker("</tool_call>")),
    ToolFormat("minimax_m2", Marker("<minimax:tool_call>"), Marker("</minimax:tool_call>")),
]


def bodies(text: str, form: ToolFormat) -> list[str]:
    """What stands between the markers."""
    parts = text.split(form.start.text)
    assert parts[0] == ""
    return [part.strip().removesuffix(form.end.text) for part in parts[1:]]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.parser)
@pytest.mark.parametrize("name", [None, "weather", "now"])
def test_mlx_lms_parsers_read_the_calls_that_are_forced(
    grammars: Grammars, form: ToolFormat, name: str | None
) -> None:
    parse = importlib.import_module(f"mlx_lm.tool_parsers.{form.parser}").parse_tool_call
    for seed in range(6):
        tokens, _ = walk(grammars, tool_calls(TOOLS, form, name=name), seed)
        read = [parse(body, TOOLS) for body in bodies(decoded(tokens), form)]
        calls = [call for one in read for call in (one if isinstance(one, list) else [one])]
        assert calls and {call["name"] for call in calls} <= ({name} if name else {"weather", "now"})
        assert name is None or len(calls) == 1
        for call in calls:
            if call["name"] == "weather":
                assert call["arguments"]["city"] in ("Basel", "Bern") and 1 <= call["arguments"]["days"] <= 9
            else:
                assert not call["arguments"]


def test_without_parallel_calls_there_is_one(grammars: Grammars) -> None:
    for seed in range(10):
        tokens, _ = walk(grammars, tool_calls(TOOLS, HERMES, several=False), seed)
        assert len(bodies(decoded(tokens), HERMES)) == 1


def test_markers_that_are_tokens_are_forced_as_tokens(grammars: Grammars) -> None:
    form = ToolFormat("json_tools", Marker("<|start|>", 1), HERMES.end)
    constraint = grammars.constraint(tool_calls(TOOLS, form))
    assert allowed(constraint) == [1]


def test_a_format_is_known_by_mlx_lms_parser() -> None:
    from mlx_lm.tool_parsers import mistral

    class Tokenizer:
        tool_parser = staticmethod(mistral.parse_tool_call)
        tool_call_start = "[TOOL_CALLS]"
        tool_call_end = ""

        def get_vocab(self) -> dict[str, int]:
            return {"[TOOL_CALLS]": 5}

    assert tool_format(Tokenizer()) == ToolFormat("mistral", Marker("[TOOL_CALLS]", 5), Marker(""))
    untaught = tool_format(families.tokenizer())
    assert untaught == ToolFormat("json_tools", Marker("<tool_call>"), Marker("</tool_call>"))


def test_what_cannot_be_forced_is_refused() -> None:
    with pytest.raises(GrammarError, match="no function 'x'"):
        tool_calls(TOOLS, HERMES, name="x")
    with pytest.raises(GrammarError, match="pythonic"):
        tool_calls(TOOLS, ToolFormat("pythonic", Marker("a"), Marker("b")))


def test_a_marked_up_text_argument_is_free_until_its_closing_mark(grammars: Grammars) -> None:
    properties = {"text": {"type": "string"}, "many": {"type": "array", "items": {"type": "integer"}}}
    parameters = {"type": "object", "properties": properties, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "say", "parameters": parameters}}
    text = (
        "<tool_call>\n<function=say>\n<parameter=text>\na <b> </parameter\n{}\n</parameter>\n"
        "{}</function>\n</tool_call>"
    )
    form = FORMATS[3]
    for more, good in [("", True), ("<parameter=many>\n[1, 2]\n</parameter>\n", True), ("<x>", False)]:
        constraint = grammars.constraint(tool_calls([tool], form, name="say"))
        for token in encoded(text.format("{}", more)):
            constraint.accept(token)
        assert (constraint.fault is None and constraint.over) == good


@pytest.mark.parametrize("marker", [Marker("</t>"), Marker("<|start|>", 1)])
@pytest.mark.parametrize("inner", [grammar.json_schema(SCHEMA), grammar.regex("[0-9]{3}"), 'start: "do re"'])
def test_thinking_is_free_and_what_follows_is_not(grammars: Grammars, marker: Marker, inner: str) -> None:
    constraint = grammars.constraint(after(marker, inner))
    opening = [1] if marker.token else encoded(marker.text)
    for token in [*encoded("any {thing} at all, <t>"), *opening]:
        constraint.accept(token)
    assert constraint.fault is None
    tokens, _ = walk(grammars, inner, 2)
    constraint.accept(encoded("\n")[0])
    for token in tokens:
        constraint.accept(token)
    assert constraint.fault is None and constraint.over
