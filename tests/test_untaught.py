"""Tools for a model whose template knows none: it is told, and its calls are read back."""

import json
from typing import Any

import families
from motet.actors.intake import Intake
from motet.actors.untaught import template_takes_tools, told_of_tools
from motet.engine.output import Output
from motet.engine.reasoning import NORMAL, Markup
from served import chat, served
from tool_samples import TOOLS
from tool_tokenizer import tool_tokenizer

CHAT = "/v1/chat/completions"
CALL = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "how is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c"},
]


def test_a_template_is_asked_whether_it_takes_tools() -> None:
    assert template_takes_tools(tool_tokenizer())
    assert not template_takes_tools(families.tokenizer())


def test_the_model_reads_the_tools_the_call_and_its_result() -> None:
    tokenizer = families.tokenizer()
    read = Intake(tokenizer, families.VOCABULARY, None, cuts=True).read(ASKED, "messages", tools=TOOLS)
    text = tokenizer.decode(list(read.tokens))
    for tool in TOOLS:
        assert json.dumps(tool["function"], ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>' in text
    assert "<tool_response>\nrain\n</tool_response>" in text


def test_a_system_prompt_stays_first_and_whole() -> None:
    (system, _) = told_of_tools([{"role": "system", "content": "Be kind."}, ASKED[0]], TOOLS)
    assert system["role"] == "system" and system["content"].startswith("Be kind.\n\n")
    assert told_of_tools([ASKED[0]], []) == [ASKED[0]]


def test_an_earlier_call_is_written_as_a_new_one_is_read() -> None:
    tokenizer = families.tokenizer()
    call = {"name": "get_weather", "arguments": {"city": "Bern"}}
    (message,) = told_of_tools([{"role": "assistant", "content": "", "tool_calls": [{"function": call}]}], [])
    output = Output(Markup(tokenizer), begins=NORMAL, tools=TOOLS)
    pieces, _ = output.push(tokenizer.encode(message["content"]))
    pieces = [*pieces, *output.finish(cut=False)]
    assert [piece.name for piece in pieces if piece.name] == ["get_weather"]
    assert json.loads("".join(piece.text for piece in pieces)) == call["arguments"]


async def test_a_call_that_must_be_made_is_made() -> None:
    offered = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    asked = chat("x", max_tokens=120, tools=offered, tool_choice="required", parallel_tool_calls=False)
    asked["tools"][0]["function"]["parameters"] = {
        "type": "object",
        "properties": {"utc": {"type": "boolean"}},
        "required": ["utc"],
        "additionalProperties": False,
    }
    async with served() as server, server.client() as client:
        choice = (await client.post(CHAT, json=asked)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "now" and set(json.loads(call["function"]["arguments"])) == {"utc"}
