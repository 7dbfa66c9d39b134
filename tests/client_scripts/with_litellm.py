"""litellm, through its OpenAI and Anthropic adapters."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices

import litellm

litellm.suppress_debug_info = True
ASK = [{"role": "user", "content": "What is the capital of France?"}]
OPENAI = {"model": "openai/default_model", "api_base": sys.argv[1] + "/v1", "api_key": "none"}
ANTHROPIC = {"model": "anthropic/default_model", "api_base": sys.argv[1], "api_key": "none"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def ask(adapter, **fields):
    return litellm.completion(**adapter, messages=ASK, **{"max_tokens": 24, **fields})


def chat() -> None:
    for adapter in (OPENAI, ANTHROPIC):
        whole = ask(adapter)
        assert "Paris" in whole.choices[0].message.content
        assert whole.usage.completion_tokens <= 24


def stream() -> None:
    for adapter in (OPENAI, ANTHROPIC):
        pieces = [chunk.choices[0].delta.content or "" for chunk in ask(adapter, stream=True)]
        assert "Paris" in "".join(pieces)


def tools() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    for adapter in (OPENAI, ANTHROPIC):
        whole = ask(adapter, tools=[tool], tool_choice="required", max_tokens=64)
        assert whole.choices[0].message.tool_calls[0].function.name == "get_weather"


def structured() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    whole = ask(OPENAI, response_format=form, max_tokens=64)
    assert json.loads(whole.choices[0].message.content)["city"] in {"Paris", "Rome"}


{"chat": chat, "stream": stream, "tools": tools, "structured": structured}[sys.argv[2]]()
