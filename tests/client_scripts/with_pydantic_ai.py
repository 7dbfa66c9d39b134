"""pydantic-ai over OpenAI's chat and responses."""

import asyncio
import sys
from typing import Literal

import pydantic
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

openai = OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none")
MODELS = [
    OpenAIChatModel("default_model", provider=openai),
    OpenAIResponsesModel("default_model", provider=openai),
]
ASK = "What is the capital of France?"
SETTINGS = {"max_tokens": 96, "temperature": 0}


class City(pydantic.BaseModel):
    name: Literal["Paris", "Rome"]
    capital: bool


async def chat() -> None:
    for model in MODELS:
        agent = Agent(model, instructions="You are a helpful assistant.", model_settings=SETTINGS)
        first = await agent.run(ASK)
        assert "Paris" in first.output
        then = await agent.run("And again?", message_history=first.all_messages())
        assert then.output


async def stream() -> None:
    for model in MODELS:
        async with Agent(model, model_settings=SETTINGS).run_stream(ASK) as run:
            assert "Paris" in await run.get_output()


async def tools() -> None:
    for model in MODELS:
        agent = Agent(model, output_type=ToolOutput(City), model_settings=SETTINGS, retries=0)
        assert isinstance((await agent.run(ASK)).output, City)


async def structured() -> None:
    for model in MODELS:
        agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS, retries=0)
        assert isinstance((await agent.run(ASK)).output, City)


asyncio.run({"chat": chat, "stream": stream, "tools": tools, "structured": structured}[sys.argv[2]]())
