"""OpenAI's own client: chat, streams, tools, structured output, responses."""

import sys

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}


class City(pydantic.BaseModel):
    name: str
    capital: bool


def chat() -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=24)
    whole = raw.parse()
    assert "Paris" in whole.choices[0].message.content
    assert raw.headers["x-request-id"] == whole.id
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    text = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=8)
    assert "Paris" in text.choices[0].text
    assert client.models.retrieve(MODEL).id == MODEL
    first = client.responses.create(model=MODEL, input="My name is Alice.", max_output_tokens=16)
    assert first.output_text and first.usage.output_tokens <= 16
    then = client.responses.create(
        model=MODEL, input="Again?", previous_response_id=first.id, max_output_tokens=16
    )
    assert then.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert client.responses.retrieve(then.id).output_text == then.output_text
    client.responses.delete(then.id)
    for wrong, error in (
        (lambda: client.responses.retrieve(then.id), openai.NotFoundError),
        (lambda: client.chat.completions.create(model="gpt-4", messages=ASK), openai.NotFoundError),
        (lambda: client.chat.completions.create(model=MODEL, messages=[]), openai.BadRequestError),
    ):
        try:
            wrong()
        except error as refused:
            assert refused.param, refused
        else:
            raise AssertionError("not refused")


def stream() -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24)
    with client.chat.completions.stream(model=MODEL, messages=ASK, max_tokens=24) as events:
        said = "".join(event.delta for event in events if event.type == "content.delta")
        assert said == whole.choices[0].message.content
    with client.responses.stream(model=MODEL, input=ASK, max_output_tokens=24) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] in {"response.completed", "response.incomplete"}
    assert final.output_text == said


def tools() -> None:
    def ask(**fields):
        return client.chat.completions.create(
            model=MODEL, messages=ASK, tools=[TOOL], max_tokens=64, tool_choice="required", **fields
        )

    (call,) = ask(parallel_tool_calls=False).choices[0].message.tool_calls
    assert call.function.name == "get_weather" and '"city"' in call.function.arguments
    chunks = [c.choices[0].delta for c in ask(parallel_tool_calls=False, stream=True) if c.choices]
    pieces = [delta.tool_calls[0] for delta in chunks if delta.tool_calls]
    assert "".join(p.function.arguments or "" for p in pieces) == call.function.arguments
    history = [
        *ASK,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    told = client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=8)
    assert told.choices[0].finish_reason
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    response = client.responses.create(
        model=MODEL, input=ASK, tools=[tool], tool_choice="required", max_output_tokens=64
    )
    assert next(i.name for i in response.output if i.type == "function_call") == "get_weather"


def structured() -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=City, max_tokens=96)
    assert isinstance(parsed.choices[0].message.parsed, City)
    response = client.responses.parse(model=MODEL, input=ASK, text_format=City, max_output_tokens=96)
    assert isinstance(response.output_parsed, City)


{"chat": chat, "stream": stream, "tools": tools, "structured": structured}[sys.argv[2]]()
