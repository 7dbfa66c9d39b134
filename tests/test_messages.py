"""What Anthropic's messages become, and how their answers are told."""

import json
from typing import Any

import pytest

from motet import Finished, InvalidRequest, Reasoning, Request, Text, Usage
from motet.http.messages_answer import MessagesAnswer
from motet.http.messages_request import MessagesRequest
from motet.http.schema import parse
from served import served
from test_surface import ASK, CREATE, events, post


def row(**fields: Any) -> Request:
    """What is asked of the engine."""
    body = json.dumps(ASK | fields).encode()
    (request,) = parse(MessagesRequest, body).chat(strip_billing=False).requests("me")
    return request


@pytest.mark.parametrize(
    ("asked", "thinks"),
    [
        ({}, False),
        ({"thinking": None}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
    ],
)
def test_a_model_thinks_only_when_asked_to(asked: dict[str, Any], thinks: bool) -> None:
    assert row(**asked).template == {"enable_thinking": thinks}


def test_a_thinking_block_is_signed_before_it_ends() -> None:
    answer = MessagesAnswer("m")
    end = Finished(0, "stop", Usage(1, 2, 0))
    told = list(events("".join(map(answer.event, (Reasoning(0, "hm", 1), Text(0, "so", 2), end)))))
    first = [event for event in told if event.get("index") == 0]
    assert [event["type"] for event in first[-2:]] == ["content_block_delta", "content_block_stop"]
    delta = first[-2]["delta"]
    assert delta["type"] == "signature_delta" and delta["signature"]
    thinking, text = answer.whole()["content"]
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": delta["signature"]}
    assert text["text"] == "so" and "signature_delta" not in str(told[len(first) :])


async def test_an_answer_has_its_id_where_anthropics_clients_look() -> None:
    async with served() as server:
        for more in ({}, {"stream": True}):
            headers = (await post(server, "/v1/messages", ASK | more)).headers
            assert headers["request-id"] == headers["x-request-id"]
        told = await post(server, "/v1/responses", CREATE)
        assert told.headers["x-request-id"] and "request-id" not in told.headers


def test_turns_of_one_role_are_one_turn() -> None:
    def use(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "f", "input": {}}

    def result(name: str, **fields: Any) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": name, **fields}

    def said(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    turns: list[tuple[str, Any]] = [
        ("user", "a"), ("user", [said("b"), said("c")]),
        ("assistant", [{"type": "thinking", "thinking": "t"}, said("d"), use("x")]),
        ("assistant", [use("y")]),
        ("assistant", "e"),
        ("user", [result("x", content="no", is_error=True)]),
        ("user", [result("y", content=[said("1"), said("2")], is_error=False), said("f")]),
    ]  # fmt: skip
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("x", "y")
    ]
    assert row(messages=[{"role": role, "content": content} for role, content in turns]).prompt == [
        {"role": "user", "content": "a\n\nbc"},
        {"role": "assistant", "content": "d\n\ne", "reasoning_content": "t", "tool_calls": calls},
        {"role": "tool", "content": "Error: no", "tool_call_id": "x"},
        {"role": "tool", "content": "12", "tool_call_id": "y"},
        {"role": "user", "content": "f"},
    ]


def test_a_tools_name_has_as_many_characters_as_anthropics() -> None:
    tools = [{"name": "n" * 128, "input_schema": {"type": "object"}}]
    (tool,) = row(tools=tools, tool_choice={"type": "tool", "name": "n" * 128}).tools
    assert tool["function"]["name"] == "n" * 128
    with pytest.raises(InvalidRequest) as refused:
        row(tools=[tools[0] | {"name": "n" * 129}])
    assert refused.value.param == "tools[0].name"
