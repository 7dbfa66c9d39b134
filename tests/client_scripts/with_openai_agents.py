"""openai-agents over responses and over chat completions."""

import asyncio
import sys
from typing import Literal

import openai
import pydantic
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MODELS = [
    OpenAIResponsesModel("default_model", openai_client=client),
    OpenAIChatCompletionsModel("default_model", openai_client=client),
]
ASK = "What is the capital of France?"
SETTINGS = ModelSettings(max_tokens=96, temperature=0)
called = []


class City(pydantic.BaseModel):
    name: Literal["Paris", "Rome"]
    capital: bool


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    called.append(city)
    return "sunny"


async def chat() -> None:
    for model in MODELS:
        agent = Agent(
            "guide", instructions="You are a helpful assistant.", model=model, model_settings=SETTINGS
        )
        first = await Runner.run(agent, ASK)
        assert "Paris" in first.final_output
        then = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "And again?"}])
        assert then.final_output


async def stream() -> None:
    for model in MODELS:
        run = Runner.run_streamed(Agent("guide", model=model, model_settings=SETTINGS), ASK)
        kinds = [event.type async for event in run.stream_events()]
        assert "raw_response_event" in kinds and "Paris" in run.final_output


async def tools() -> None:
    settings = ModelSettings(max_tokens=96, temperature=0, tool_choice="required")
    for model in MODELS:
        called.clear()
        agent = Agent("guide", model=model, tools=[get_weather], model_settings=settings)
        assert (await Runner.run(agent, ASK)).final_output is not None
        assert called


async def structured() -> None:
    for model in MODELS:
        agent = Agent("guide", model=model, output_type=City, model_settings=SETTINGS)
        assert isinstance((await Runner.run(agent, ASK)).final_output, City)


asyncio.run({"chat": chat, "stream": stream, "tools": tools, "structured": structured}[sys.argv[2]]())
