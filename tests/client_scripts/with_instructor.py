"""instructor: answers that are models, by tools and by schema."""

import sys
from typing import Literal

import instructor
import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
ASK = [{"role": "user", "content": "What is the capital of France?"}]
ASKED = {"model": "default_model", "messages": ASK, "max_tokens": 96, "max_retries": 0}


class City(pydantic.BaseModel):
    name: Literal["Paris", "Rome"]
    capital: bool


def chat() -> None:
    """Without a model for the answer it is the plain client."""
    whole = instructor.from_openai(client).chat.completions.create(
        **{**ASKED, "max_tokens": 24}, response_model=None
    )
    assert "Paris" in whole.choices[0].message.content


def stream() -> None:
    chunks = instructor.from_openai(client).chat.completions.create(
        **{**ASKED, "max_tokens": 24}, response_model=None, stream=True
    )
    assert "Paris" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def tools() -> None:
    city = instructor.from_openai(client, mode=instructor.Mode.TOOLS).create(**ASKED, response_model=City)
    assert isinstance(city, City)


def structured() -> None:
    mode = instructor.Mode.JSON_SCHEMA
    made = instructor.from_openai(client, mode=mode)
    assert isinstance(made.create(**ASKED, response_model=City), City)
    parts = list(made.create_partial(**ASKED, response_model=City))
    assert parts[-1].name in {"Paris", "Rome"}


{"chat": chat, "stream": stream, "tools": tools, "structured": structured}[sys.argv[2]]()
