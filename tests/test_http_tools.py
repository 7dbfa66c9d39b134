"""Tools and thinking through the HTTP app, read by OpenAI's client, over a device with a script."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import openai
import pytest
import trio.testing

from motet.channels.request import Work
from motet.http.app import make_app
from scripted import scripted_system
from tool_samples import TOOLS
from tool_tokenizer import tool_tokenizer

TOKENIZER = tool_tokenizer()
ASKED: list[Any] = [{"role": "user", "content": "find a fox"}]
CALLS = (
    'I look.\n<tool_call>\n{"name": "search", "arguments": {"query": "日本 🎉"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x", "days": 2}}\n</tool_call>'
)


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """The device's time at many times its speed; a worker thread's time does not jump."""
    return trio.testing.MockClock(rate=100)


@attrs.define
class Served:
    client: openai.AsyncOpenAI
    prompts: list[str]
    """What the device was given to read."""

    async def whole(self, **fields: Any) -> Any:
        return await self.client.chat.completions.create(**{**_BODY, **fields})

    async def streamed(self, **fields: Any) -> tuple[Any, list[Any]]:
        """The message that OpenAI's client puts together, and all deltas."""
        deltas = []
        usage = {"include_usage": True}
        async with self.client.chat.completions.stream(**{**_BODY, **fields}, stream_options=usage) as stream:
            async for event in stream:
                if event.type == "chunk" and event.chunk.choices:
                    deltas.append(event.chunk.choices[0].delta)
            return await stream.get_final_completion(), deltas


_BODY = {"model": "tiny", "messages": ASKED, "max_tokens": 200}


@contextlib.asynccontextmanager
async def served(says: str) -> AsyncIterator[Served]:
    """A server whose model says this and no more."""
    tokens = [*TOKENIZER.encode(says), *TOKENIZER.eos_token_ids]
    prompts = []

    def script(work: Work, index: int) -> int:
        if index == 0:
            prompts.append(TOKENIZER.decode(list(work.prompt)))
        return tokens[index]

    async with scripted_system(script, TOKENIZER) as system:
        transport = httpx.ASGITransport(make_app(system.engine, "tiny"))
        async with httpx.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(base_url="http://motet/v1", api_key="-", http_client=http)
            yield Served(client, prompts)


def said(message: Any) -> tuple[Any, ...]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return getattr(message, "reasoning_content", None), message.content, calls


# OpenAI's client leaves its own generators to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_thinking_and_calls_whole_and_streamed() -> None:
    async with served(f"Hm é\n</think>\n\n{CALLS}") as server:
        whole = await server.whole(tools=TOOLS)
        streamed, deltas = await server.streamed(tools=TOOLS)
    choice = whole.choices[0]
    calls = [("search", '{"query": "日本 🎉"}'), ("get_weather", '{"city": "x", "days": 2}')]
    assert said(choice.message) == ("Hm é", "I look.", calls)
    assert choice.finish_reason == streamed.choices[0].finish_reason == "tool_calls"
    assert all(call.id.startswith("call_") for call in choice.message.tool_calls)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert (reasoning, *said(streamed.choices[0].message)[1:]) == said(choice.message)
    assert sum(bool(delta.tool_calls) for delta in deltas) > 10
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0


async def test_calls_alone_have_no_content() -> None:
    async with served(f"</think>\n\n{CALLS.partition('look.')[2]}") as server:
        message = (await server.whole(tools=TOOLS)).choices[0].message
        assert message.content is None and len(message.tool_calls) == 2
        one = (await server.whole(tools=TOOLS, parallel_tool_calls=False)).choices[0]
        assert len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls"


async def test_malformed_calls_are_text() -> None:
    text = CALLS.replace('"}}', "}").replace('"days": 2}}', "")
    async with served(f"</think>{text}") as server:
        choice = (await server.whole(tools=TOOLS)).choices[0]
        assert said(choice.message)[1].startswith("I look.") and choice.finish_reason == "stop"


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
async def test_without_tools_what_looks_like_a_call_is_text(fields: dict[str, Any]) -> None:
    async with served(f"</think>{CALLS}") as server:
        choice = (await server.whole(**fields)).choices[0]
        assert (said(choice.message), choice.finish_reason) == ((None, CALLS, []), "stop")
        assert "get_weather" not in server.prompts[0]


async def test_tools_and_a_chats_calls_reach_the_template() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a fox"},
    ]
    async with served("</think>ok") as server:
        assert (await server.whole(messages=messages, tools=TOOLS)).choices[0].message.content == "ok"
        prompt = server.prompts[0]
    assert json.dumps(TOOLS[0]["function"]["parameters"]) in prompt
    assert "assistant\n<think>\nHm\n</think>\n\n<tool_call>\n" in prompt
    assert '{"name": "search", "arguments": {"query": "x"}}' in prompt
    assert "tool call_1\na fox" in prompt


@pytest.mark.parametrize("arguments", ["{", "5", "[1]"])
async def test_a_chats_calls_must_have_an_object(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": arguments}}
    async with served("ok") as server:
        with pytest.raises(openai.BadRequestError) as refused:
            await server.whole(messages=[*ASKED, {"role": "assistant", "tool_calls": [call]}])
    assert refused.value.param == "messages[1].tool_calls[0].function.arguments"


async def test_thinking_can_be_switched_off() -> None:
    async with served("ok") as server:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert said((await server.whole(extra_body=off)).choices[0].message)[:2] == (None, "ok")
        assert said((await server.whole(reasoning_effort="none")).choices[0].message)[:2] == (None, "ok")
        assert said((await server.whole()).choices[0].message)[:2] == ("ok", "")


async def test_what_the_template_is_not_to_be_told_is_refused() -> None:
    async with served("ok") as server:
        with pytest.raises(openai.BadRequestError) as refused:
            await server.whole(extra_body={"chat_template_kwargs": {"tokenize": False}})
    assert refused.value.param == "chat_template_kwargs"


async def test_a_choice_that_cannot_be_made_is_refused() -> None:
    async with served("ok") as server:
        named = {"type": "function", "function": {"name": "nowhere"}}
        for tools, choice in ((TOOLS, named), ([], "required")):
            with pytest.raises(openai.BadRequestError) as refused:
                await server.whole(tools=tools, tool_choice=choice)
            assert refused.value.param == "tool_choice"
