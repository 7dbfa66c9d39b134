"""Tools beside a form of the text: the reply is a text of that form, or it is calls."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import attrs
import pytest
from mlx_lm.tool_parsers import pythonic, qwen3_coder

import families
from motet import Request, grammar
from motet.actors.intake import InvalidRequest
from motet.actors.structure import checked_grammar
from motet.actors.system import Settings, open_system
from motet.channels.request import Sampling
from motet.engine.constraints.constraint import Grammars
from motet.engine.constraints.grammar import either
from motet.engine.constraints.tools import ToolFormat, free_calls, tool_calls
from served import Server, chat, serving
from test_constraints import FORMATS, HERMES, TOOLS, allowed, decoded, walk
from tool_tokenizer import tool_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}, "many": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["open", "many"],
    "additionalProperties": False,
}
ANSWER = '{"open": true, "many": 7}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>'
END = 0
FORM = grammar.json_schema(SCHEMA)
ASKED = ({"role": "user", "content": "x"},)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = tool_tokenizer()
    return Grammars(tokenizer, len(tokenizer._tokenizer))


def encoded(text: str) -> list[int]:
    return list(tool_tokenizer().encode(text))


def takes(grammars: Grammars, text: str, tokens: Sequence[int]) -> bool:
    """Whether a reply of these tokens is what the grammar says, from its first to its end."""
    constraint = grammars.constraint(text)
    for token in tokens:
        if constraint.over:
            return False
        constraint.accept(token)
        if constraint.fault is not None:
            return False
    return constraint.over or END in allowed(constraint)


def checked(grammars: Grammars, tokenizer: Any = None, thinks: bool = False, **fields: Any) -> str:
    fields = {"grammar": FORM, "grammar_param": "response_format", "tools": tuple(TOOLS), **fields}
    return checked_grammar(grammars, tokenizer or tool_tokenizer(), Request(ASKED, **fields), thinks=thinks)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.parser)
@pytest.mark.parametrize(
    "text, good",
    [(FORM, ANSWER), (grammar.json_object(), ANSWER), (grammar.regex("[0-9]{3}"), "123"),
     (grammar.lark('start: "do" | "re"'), "re")],
)  # fmt: skip
def test_it_is_the_one_or_the_other(form: ToolFormat, text: str, good: str) -> None:
    plain, spelt = Grammars(families.tokenizer(), families.VOCABULARY), families.tokenizer().encode
    calls = tool_calls(TOOLS, form)
    union = either(text, calls)
    assert takes(plain, union, spelt(good))
    for seed in range(3):
        call = decoded(walk(plain, calls, seed)[0])
        assert takes(plain, union, spelt(call))
        assert not takes(plain, union, spelt(good + call)) and not takes(plain, union, spelt(call + good))
    for neither in ("hello", "", good[:-1], form.start.text):
        assert not takes(plain, union, spelt(neither))


@pytest.mark.parametrize("thinks", [False, True])
def test_a_request_with_both_may_answer_or_call(grammars: Grammars, thinks: bool) -> None:
    thought = "hm {\n</think>\n\n" if thinks else ""
    text = checked(grammars, thinks=thinks)
    for reply in (ANSWER, CALL, f"{CALL}\n{CALL}"):
        assert takes(grammars, text, encoded(thought + reply))
    for reply in ("hello", ANSWER + CALL, CALL + ANSWER, CALL.replace("Bern", "Rome"), "<tool_call>"):
        assert not takes(grammars, text, encoded(thought + reply))
    one = checked(grammars, thinks=thinks, parallel_tool_calls=False)
    assert takes(grammars, one, encoded(thought + CALL))
    assert not takes(grammars, one, encoded(f"{thought}{CALL}\n{CALL}"))


def test_with_no_tools_or_with_calls_that_must_be_made_there_is_no_choice(grammars: Grammars) -> None:
    both, only_text, only_calls = (
        checked(grammars, **how) for how in ({}, {"tools": ()}, {"must_call": True})
    )
    assert takes(grammars, both, encoded(ANSWER)) and takes(grammars, both, encoded(CALL))
    assert takes(grammars, only_text, encoded(ANSWER)) and not takes(grammars, only_text, encoded(CALL))
    assert takes(grammars, only_calls, encoded(CALL)) and not takes(grammars, only_calls, encoded(ANSWER))


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def called(name: str, arguments: str) -> list[int]:
    return encoded(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')


def test_a_tools_schema_that_cannot_be_honoured_does_not_refuse_the_request(grammars: Grammars) -> None:
    odd = tool("pick", properties={"from": {"type": "array", "uniqueItems": True}}, required=["from"])
    text = checked(grammars, tools=(odd, *TOOLS))
    assert takes(grammars, text, called("pick", '{"from": [1, 1]}')) and takes(grammars, text, encoded(CALL))
    assert not takes(grammars, text, called("pick", "{}"))
    assert not takes(grammars, text, encoded(CALL.replace("Bern", "Rome")))  # others are held all the same
    for fields, param, reason in [
        ({"must_call": True}, "tool_choice", "uniqueItems"),
        ({"grammar": grammar.json_schema({"not": {}})}, "response_format", '"not"'),
    ]:
        with pytest.raises(InvalidRequest, match=reason) as refused:
            checked(grammars, tools=(odd,), **fields)
        assert refused.value.param == param


def test_tools_that_are_too_much_together_are_held_to_their_names(grammars: Grammars) -> None:
    long = {"a": {"type": "integer", "description": "x" * 150_000}}
    text = checked(grammars, tools=(tool("one", properties=long), tool("two", properties=long)))
    assert takes(grammars, text, called("two", '{"a": "b"}')) and takes(grammars, text, encoded(ANSWER))
    assert not takes(grammars, text, called("three", '{"a": 1}'))


@pytest.mark.parametrize("parameters", [{"properties": [1]}, {"properties": {"a": True}, "required": 1}])
def test_marked_up_arguments_of_no_schema_are_no_fault(parameters: Any, grammars: Grammars) -> None:
    tokenizer = Taught(qwen3_coder.parse_tool_call, "<tool_call>", "</tool_call>")
    text = checked(grammars, tokenizer, tools=(tool("f", **parameters),))
    assert takes(grammars, text, encoded("<tool_call>\n<function=f>\n</function>\n</tool_call>"))


@attrs.define
class Taught:
    """A tokenizer whose model writes its calls in another format."""

    tool_parser: Callable[..., Any]
    tool_call_start: str
    tool_call_end: str
    eos_token_ids: frozenset[int] = frozenset({END})

    def get_vocab(self) -> dict[str, int]:
        return dict(tool_tokenizer().get_vocab())


def test_in_a_format_that_cannot_be_forced_calls_are_free_between_their_markers(grammars: Grammars) -> None:
    taught = Taught(pythonic.parse_tool_call, "<tool_call>", "</tool_call>")
    text = checked(grammars, taught)
    call = encoded("<tool_call>[weather(city='<|start|>')]</tool_call>")
    assert takes(grammars, text, call) and takes(grammars, text, [*call, *call])
    assert takes(grammars, text, encoded(ANSWER))
    for reply in ("hello", "<tool_call>[weather(", ANSWER + CALL):
        assert not takes(grammars, text, encoded(reply))
    assert not takes(grammars, checked(grammars, taught, parallel_tool_calls=False), [*call, *call])


def test_where_a_call_cannot_be_told_from_text_the_reply_is_the_answer(grammars: Grammars) -> None:
    assert free_calls(HERMES, (END,), several=True) is None
    text = checked(grammars, Taught(pythonic.parse_tool_call, "<calls>", "</calls>"))
    assert takes(grammars, text, encoded(ANSWER))
    assert not takes(grammars, text, encoded("<calls>[now()]</calls>"))


# --- over HTTP --------------------------------------------------------------------------------

FUNCTIONS = [one["function"] for one in TOOLS]
TURN = [{"role": "user", "content": "how is it?"}]
MODEL: dict[str, Any] = {"model": "tiny", "temperature": 1, "seed": 3}
NAMED = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
CHAT = chat("x", tools=TOOLS, max_tokens=400)
RESPONSES = MODEL | {
    "input": TURN, "max_output_tokens": 400, "text": {"format": NAMED},
    "tools": [{"type": "function", **function} for function in FUNCTIONS],
}  # fmt: skip
MESSAGES = MODEL | {
    "messages": TURN, "max_tokens": 400,
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "tools": [
        {"name": function["name"], "input_schema": function.get("parameters", {"type": "object"})}
        for function in FUNCTIONS
    ],
}  # fmt: skip
WHOLE = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT | {"response_format": WHOLE}),
    ("/v1/chat/completions", CHAT | {"grammar": {"type": "regex", "value": r'\{"open": true, "many": 7\}'}}),
    ("/v1/responses", RESPONSES),
    ("/v1/messages", MESSAGES),
]


@contextlib.asynccontextmanager
async def biased(bias: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """A server whose model is drawn to some tokens, also by routes that have no bias."""
    tokenizer = tool_tokenizer()
    wide = dict(families.CONFIGS["llama"], vocab_size=len(tokenizer._tokenizer))
    monkeypatch.setitem(families.CONFIGS, "wide", wide)
    sampling = Request.sampling

    def drawn(request: Request, *how: Any) -> Sampling:
        return attrs.evolve(sampling(request, *how), logit_bias=tuple(bias.items()))

    monkeypatch.setattr(Request, "sampling", drawn)
    load = families.loader("wide")
    async with open_system(lambda: (load()[0], tokenizer), Settings(prompt_cache_bytes=0)) as engine:
        async with serving(engine) as server:
            yield server


def told(answer: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """An answer's text, its calls, and how it ended."""
    if "choices" in answer:
        (choice,) = answer["choices"]
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        read = [(call["name"], json.loads(call["arguments"])) for call in calls]
        return choice["message"]["content"] or "", read, choice["finish_reason"]
    if "output" in answer:
        text = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
        items = [item for item in answer["output"] if item["type"] == "function_call"]
        return "".join(text), [(i["name"], json.loads(i["arguments"])) for i in items], answer["status"]
    blocks = answer["content"]
    uses = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return "".join(b["text"] for b in blocks if b["type"] == "text"), uses, answer["stop_reason"]


@pytest.mark.parametrize("path, body", BODIES)
async def test_the_model_picks(path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = tool_tokenizer().get_vocab()
    start, think_end = vocabulary["<tool_call>"], vocabulary["</think>"]
    ends = {think_end: 4.0, END: 9.0}  # neither thinking nor calls go on for ever
    answers = []
    for towards in (100.0, -100.0):
        with monkeypatch.context() as patch:
            async with biased({start: towards, **ends}, patch) as server, server.client() as client:
                response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        answers.append(told(response.json()))
    (before, calls, called_end), (text, none, text_end) = answers
    assert calls and not before.strip() and called_end in {"tool_calls", "tool_use", "completed"}
    for name, arguments in calls:
        assert name in {"weather", "now"} and set(arguments) == (
            {"city", "days"} if name == "weather" else set()
        )
    assert not none and set(json.loads(text)) == {"open", "many"}
    assert text_end in {"stop", "end_turn", "completed"}
