"""Anthropic's own client: messages, streams, tools, structured output, counting."""

import json
import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
ASK = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASKED = {"model": "default_model", "messages": ASK, "max_tokens": 24}


def chat() -> None:
    system = [
        {"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}
    ]
    message = client.messages.create(**ASKED, system=system)
    assert "Paris" in message.content[0].text
    assert message.stop_reason in {"end_turn", "max_tokens"}
    count = client.messages.count_tokens(model="default_model", messages=ASK, system=system)
    used = message.usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens
    again = client.messages.create(**ASKED, system=system)
    assert again.usage.cache_read_input_tokens == count.input_tokens - 1


def stops() -> None:
    text = client.messages.create(**ASKED).content[0].text
    stopped = client.messages.create(**ASKED, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris"), stopped
    assert stopped.content[0].text == text[: text.index("Paris")]


def refusals() -> None:
    for wrong, error in (
        ({**ASKED, "messages": []}, anthropic.BadRequestError),
        ({**ASKED, "model": "claude"}, anthropic.NotFoundError),
    ):
        try:
            client.messages.create(**wrong)
        except error as refused:
            assert refused.body["error"]["param"], refused
        else:
            raise AssertionError("not refused")


def stream() -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as events:
        assert "".join(events.text_stream) == whole.content[0].text
        final = events.get_final_message()
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def tools() -> None:
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
    asked = {**ASKED, "max_tokens": 64, "tools": [tool], "tool_choice": {"type": "any"}}
    message = client.messages.create(**asked)
    call = next(block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use" and call.input["city"] in {"Paris", "Rome"}
    with client.messages.stream(**asked) as events:
        streamed = events.get_final_message()
    assert next(b.input for b in streamed.content if b.type == "tool_use") == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    told = client.messages.create(model="default_model", messages=history, tools=[tool], max_tokens=8)
    assert told.stop_reason


def structured() -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = client.messages.create(**{**ASKED, "max_tokens": 64}, output_config=form)
    assert json.loads(message.content[0].text)["city"] in {"Paris", "Rome"}


PARTS = (chat, stream, stops, refusals, tools, structured)
{part.__name__: part for part in PARTS}[sys.argv[2]]()
