"""A hundred JSON schemas on the real small model at a high temperature: what is finished validates."""

import json
import os
from typing import Any

import attrs
import httpx
import pytest
import trio
from jsonschema import Draft202012Validator

from motet.actors.system import Settings, open_system
from motet.engine import default_model, model
from motet.engine.constraints import grammar
from motet.engine.constraints.constraint import Grammars
from motet.engine.constraints.grammar import GrammarError
from schemas import SCHEMAS, Schema
from served import serving

LIMIT = 400
CLIENTS = 16


@attrs.define
class Outcome:
    """How many were taken, and how many of these came to their end."""

    refused: list[str] = attrs.Factory(list)
    completed: int = 0
    cut: int = 0
    tokens: int = 0

    def take(self, schema: Schema, reason: str | None, answer: httpx.Response) -> None:
        """One schema's answer; ``reason`` is llguidance's for refusing it."""
        body = answer.json()
        if answer.status_code != 200:
            error = body["error"]
            assert answer.status_code == 400 and error["param"] == "response_format", error
            assert reason and reason in error["message"]
            self.refused.append(reason.strip().splitlines()[-1])
            return
        assert reason is None
        choice = body["choices"][0]
        self.tokens += body["usage"]["completion_tokens"]
        if choice["finish_reason"] == "length":
            self.cut += 1
            return
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
            json.loads(choice["message"]["content"])
        )
        self.completed += 1


def asked(index: int, schema: Schema) -> dict[str, Any]:
    content = f"Write an example of JSON that matches this schema, and nothing else: {json.dumps(schema)}"
    form = {"name": f"schema_{index}", "schema": schema, "strict": True}
    return {
        "model": "default_model",
        "messages": [{"role": "user", "content": content}],
        "response_format": {"type": "json_schema", "json_schema": form},
        "temperature": 1.2,
        "max_tokens": LIMIT,
        "seed": index,
    }


def reason(grammars: Grammars, schema: Schema) -> str | None:
    try:
        grammars.check(grammar.json_schema(schema))
    except GrammarError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_hundred_schemas_at_a_high_temperature() -> None:
    directory = os.fspath(default_model.directory())
    outcome, queue = Outcome(), list(enumerate(SCHEMAS))
    settings = Settings(prompt_cache_bytes=0)
    async with open_system(lambda: model.load(directory), settings) as engine, serving(engine) as server:
        grammars = Grammars(engine.tokenizer, engine.info.facts.vocabulary)

        async def client() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=None) as http:
                while queue:
                    index, schema = queue.pop(0)
                    answer = await http.post("/v1/chat/completions", json=asked(index, schema))
                    outcome.take(schema, reason(grammars, schema), answer)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)
        seconds = trio.current_time() - began
    accepted = len(SCHEMAS) - len(outcome.refused)
    print(
        f"\n{accepted} of {len(SCHEMAS)} accepted, {outcome.completed} completed and valid, {outcome.cut} cut"
    )
    print(f"{outcome.tokens} tokens in {seconds:.0f} s")
    for refused in outcome.refused:
        print("refused:", refused)
    assert accepted >= 85 and outcome.completed >= 80
