"""Bodies as they are checked: what becomes of each field, and which field a refusal names."""

import json
from typing import Any

import attrs
import pytest
from pydantic import BaseModel

from motet import InvalidRequest, Request, grammar
from motet.http.chat_request import ChatRequest
from motet.http.generation import IGNORED, UNSUPPORTED
from motet.http.messages_request import MessagesRequest
from motet.http.responses_request import ResponsesRequest
from motet.http.schema import parse
from motet.http.text_request import TextRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}


def rows(body: dict[str, Any]) -> list[Request]:
    form: type[ChatRequest | TextRequest] = ChatRequest if "messages" in body else TextRequest
    return parse(form, json.dumps(body).encode()).requests("someone")


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return CHAT | {"messages": [{"role": role, "content": content, **fields}]}


def part(**fields: Any) -> dict[str, Any]:
    return message("user", [fields])


INVALID: list[tuple[dict[str, Any], str]] = [
    (CHAT | {"temperature": "1"}, "temperature"),
    (CHAT | {"temperature": True}, "temperature"),
    (CHAT | {"temperature": 2.1}, "temperature"),
    (CHAT | {"seed": 1.0}, "seed"),
    (CHAT | {"seed": 1 << 63}, "seed"),
    (CHAT | {"max_tokens": 10**40}, "max_tokens"),
    (CHAT | {"stop": ["a"] * 17}, "stop"),
    (CHAT | {"stop": ["a", 5]}, "stop[1]"),
    (CHAT | {"stop": ""}, "stop"),
    (CHAT | {"logit_bias": {"a": 1}}, "logit_bias.a"),
    (CHAT | {"logit_bias": {"7": 101}}, "logit_bias.7"),
    (CHAT | {"top_logprobs": 21}, "top_logprobs"),
    (CHAT | {"frequency_penalty": 2.5}, "frequency_penalty"),
    (CHAT | {"priority": "first"}, "priority"),
    (CHAT | {"metadata": {"a": 1}}, "metadata.a"),
    (CHAT | {"stream_options": {"other": 1}}, "stream_options.other"),
    (CHAT | {"other": 1}, "other"),
    (CHAT | {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (CHAT | {"tools": [{"type": "code"}]}, "tools[0].type"),
    (CHAT | {"tool_choice": "maybe"}, "tool_choice"),
    (CHAT | {"tool_choice": {"type": "function"}}, "tool_choice.function"),
    (CHAT | {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT | {"response_format": {"type": "json_schema", "json_schema": {}}},
     "response_format.json_schema.name"),
    (CHAT | {"messages": [5]}, "messages[0]"),
    (CHAT | {"messages": [{}]}, "messages[0].role"),
    (message("king", "x"), "messages[0].role"),
    (message("user", None), "messages[0].content"),
    (message("user", "x", other=1), "messages[0].other"),
    (message("tool", "x"), "messages[0].tool_call_id"),
    (message("assistant", None, tool_calls=[{"id": "a"}]), "messages[0].tool_calls[0].function"),
    (part(type="text"), "messages[0].content[0].text"),
    (part(type="image_url", image_url={"url": "data:"}), "messages[0].content[0]"),
    (TEXT | {"prompt": ["x", 1]}, "prompt[1]"),
    (TEXT | {"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
    (TEXT | {"prompt": [[1], []]}, "prompt[1]"),
    (TEXT | {"prompt": [1, True]}, "prompt[1]"),
    (TEXT | {"prompt": ["x"] * 65}, "prompt"),
    (TEXT | {"prompt": {}}, "prompt"),
    ({"model": "m", "messages": None}, "messages"),
    ({"prompt": "x"}, "model"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), INVALID)
def test_a_refusal_names_the_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rows(body)
    assert refused.value.param == param
    assert refused.value.message.startswith((f"'{param}'", "unknown parameter"))
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"\xff{}", b'{"a":', b'{"a": "\\ud800"}', b"[" * 10**5])
def test_what_is_no_object_is_the_bodys_fault(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(ChatRequest, body)
    assert (refused.value.param, refused.value.code) == ("body", "invalid_body")


def test_a_list_of_many_wrong_items_is_refused_at_its_first() -> None:
    with pytest.raises(InvalidRequest) as refused:
        rows({"model": "m", "prompt": [*range(5), *"x" * 10**6]})
    assert refused.value.param == "prompt[5]"


def test_every_sampling_field_reaches_the_request() -> None:
    asked = {
        "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "xtc_threshold": 0.2,
        "seed": 4, "priority": "background",
    }  # fmt: skip
    (row,) = rows(CHAT | asked | {"repetition_context_size": 7, "stop": ["a", "b"]})
    assert {name: getattr(row, name) for name in asked} == asked
    assert (row.repetition_context, row.stop, row.client, row.param) == (7, ("a", "b"), "someone", "messages")
    (row,) = rows(TEXT)
    assert row == Request("x", client="someone")


def test_a_top_p_of_0_is_taken_by_every_api() -> None:
    said = {"model": "m", "top_p": 0, "max_tokens": 5}
    asked = [
        *rows(CHAT | said),
        *rows(TEXT | said),
        *parse(MessagesRequest, json.dumps(CHAT | said).encode()).chat(strip_billing=False).requests("me"),
        *parse(ResponsesRequest, b'{"model": "m", "input": "x", "top_p": 0}').chat(()).requests("me"),
    ]
    assert [row.top_p for row in asked] == [0] * 4


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    "asked, text, param",
    [
        ({"response_format": {"type": "text"}}, None, "grammar"),
        ({"response_format": {"type": "json_object"}}, grammar.json_object(), "response_format"),
        ({"response_format": JSON_SCHEMA}, grammar.json_schema(SCHEMA), "response_format"),
        ({"grammar": {"type": "regex", "value": "a+"}}, grammar.regex("a+"), "grammar"),
        ({"grammar": {"type": "lark", "value": 'start: "a"'}}, grammar.lark('start: "a"'), "grammar"),
    ],
)
def test_a_form_of_the_text_becomes_a_grammar(asked: dict[str, Any], text: str | None, param: str) -> None:
    (row,) = rows(CHAT | asked)
    assert (row.grammar, row.grammar_param) == (text, param)
    if "grammar" in asked:
        assert rows(TEXT | asked)[0].grammar == text
        with pytest.raises(InvalidRequest) as refused:
            rows(CHAT | asked | {"response_format": JSON_SCHEMA})
        assert refused.value.param == "grammar"


def test_a_tool_choice_says_what_must_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(UNSUPPORTED, "tools", raising=False)
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    chosen = {"type": "function", "function": {"name": "g"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [chosen]}}
    for choice, offered, must in [
        (None, 2, False),
        ("auto", 2, False),
        ("none", 0, False),
        ("required", 2, True),
        (chosen, 2, "g"),
        (allowed, 1, True),
    ]:
        (row,) = rows(CHAT | {"tools": tools, "tool_choice": choice})
        assert (len(row.tools), row.must_call) == (offered, must)


def test_max_completion_tokens_is_stronger() -> None:
    assert rows(CHAT | {"max_tokens": 5, "max_completion_tokens": 7})[0].max_tokens == 7


def test_n_rows_of_each_prompt_are_asked_for() -> None:
    assert [(row.n, row.seed) for row in rows(CHAT | {"n": 3, "seed": 5})] == [(3, 5)]
    assert [(row.n, row.prompt) for row in rows(TEXT | {"n": 2, "prompt": ["a", "b"]})] == [
        (2, "a"),
        (2, "b"),
    ]


def test_all_that_are_made_are_given() -> None:
    assert rows(TEXT | {"best_of": 1}) and rows(TEXT | {"n": 3, "best_of": 3})
    for other in ({"best_of": 2}, {"n": 2, "best_of": 1}, {"n": 2, "best_of": 3}):
        with pytest.raises(InvalidRequest) as refused:
            rows(TEXT | other)
        assert refused.value.param == "best_of"


def test_messages_are_what_a_template_reads() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = CHAT | {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "content": "5", "tool_call_id": "c"},
        ]
    }
    assert rows(body)[0].prompt == [
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c"},
    ]


@pytest.mark.parametrize("form", [ChatRequest, TextRequest])
def test_every_field_has_an_effect_or_says_that_it_has_none(form: type[BaseModel]) -> None:
    """Nothing is declared and then forgotten."""
    used = {field.name for field in attrs.fields(Request)} | {
        "best_of", "chat_template_kwargs", "frequency_penalty", "max_completion_tokens", "messages", "model",
        "reasoning_effort", "repetition_context_size", "response_format", "resumable", "resume",
        "stream", "stream_options", "tool_choice", "top_logprobs",
    }  # fmt: skip
    assert set(form.model_fields) - used <= IGNORED | UNSUPPORTED.keys()
    assert not IGNORED & UNSUPPORTED.keys()


def test_a_field_that_is_not_served_is_refused_unless_it_asks_for_nothing() -> None:
    for name, nothing in UNSUPPORTED.items():
        for form, body in ((ChatRequest, CHAT), (TextRequest, TEXT)):
            for value in nothing:
                if name in form.model_fields and not (form is TextRequest and name == "logprobs"):
                    rows(body | {name: value})
    with pytest.raises(InvalidRequest) as refused:
        rows(CHAT | {"prediction": {"type": "content", "content": "x"}})
    assert (refused.value.param, refused.value.code) == ("prediction", "unsupported_parameter")
