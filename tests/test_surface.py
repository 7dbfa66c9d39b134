"""The routes beside OpenAI's completions: messages, responses, tokens, cancelling, the document."""

import json
from collections.abc import Iterator
from typing import Any, Never

import httpx
import jsonschema
import pytest
import trio

import families
from motet import Failed, Finished, Reasoning, Text, ToolCall, Usage
from motet.http.chat_request import UserMessage
from motet.http.front import Front
from motet.http.messages_answer import MessagesAnswer
from motet.http.messages_request import MessagesRequest
from motet.http.openapi import document
from motet.http.responses_answer import ResponsesAnswer
from motet.http.responses_request import ResponsesRequest
from motet.http.responses_store import Held, ResponsesStore
from motet.http.schema import UNSEEN, parse
from served import Server, Told, chat, served, streamed, text, wait_empty

TURNS = [{"role": "user", "content": "hello"}]
ASK = {
    "model": "default_model",
    "max_tokens": 12,
    "messages": TURNS,
    "temperature": 1,
    "seed": 3,
}
CREATE = {"model": "default_model", "max_output_tokens": 12, "input": "hello", "seed": 3}


DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(140):
    DEEP = {"not": DEEP}
HUGE = {"type": "integer", "maximum": 10**400 - 1}
ENDLESS = {"maximum": float("inf")}
MANY_CALLS = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in range(129)],
}


def output(schema: dict[str, Any], **name: str) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "schema": schema, **name}}


def named(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def events(body: str) -> Iterator[dict[str, Any]]:
    """A stream's typed events."""
    for block in body.strip().split("\n\n"):
        if block == "data: [DONE]":
            continue
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        yield event


async def post(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with server.client() as client:
        return await client.post(path, json=body, headers=headers)


# --- messages ---------------------------------------------------------------------------------


async def test_a_message_streamed_and_whole_say_the_same() -> None:
    async with served() as server:
        whole = (await post(server, "/v1/messages", ASK)).json()
        told = list(events((await post(server, "/v1/messages", ASK | {"stream": True})).text))
        count = (
            await post(server, "/v1/messages/count_tokens", {k: ASK[k] for k in ("model", "messages")})
        ).json()
        (block,) = whole["content"]
        assert [e["type"] for e in told if e["type"] != "content_block_delta"] == [
            "message_start", "ping", "content_block_start", "content_block_stop", "message_delta",
            "message_stop",
        ]  # fmt: skip
        deltas = [e["delta"]["text"] for e in told if e["type"] == "content_block_delta"]
        assert "".join(deltas) == block["text"] and len(deltas) > 1
        assert whole["stop_reason"] == told[-2]["delta"]["stop_reason"] == "max_tokens"
        assert told[0]["message"]["usage"]["input_tokens"] == count["input_tokens"]
        usage = told[-2]["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"]
        assert usage["cache_read_input_tokens"] > 0 and usage["output_tokens"] == 12
        await wait_empty(server)


def test_blocks_of_a_message_are_told_one_after_the_other() -> None:
    answer = MessagesAnswer("m")
    usage = Usage(9, 5, 4)
    said = answer.opening() + "".join(
        answer.event(event)
        for event in (
            Reasoning(0, "hm", 1), Reasoning(0, "m", 2), Text(0, "so", 3),
            ToolCall(0, 0, '{"a"', "call_1", "f"), ToolCall(0, 0, ": 1}"), ToolCall(0, 1, "", "call_2", "g"),
            Finished(0, "tool_calls", usage),
        )
    )  # fmt: skip
    told = list(events(said + answer.closing()))
    assert [e["content_block"]["type"] for e in told if e["type"] == "content_block_start"] == [
        "thinking", "text", "tool_use", "tool_use",
    ]  # fmt: skip
    starts = [e["index"] for e in told if e["type"] in {"content_block_start", "content_block_stop"}]
    assert starts == [0, 0, 1, 1, 2, 2, 3, 3]
    blocks = answer.whole()["content"]
    assert [b.get("thinking") or b.get("text") or b["input"] for b in blocks] == ["hmm", "so", {"a": 1}, {}]
    assert told[-2]["delta"]["stop_reason"] == "tool_use" and told[-1]["type"] == "message_stop"


def test_a_stop_sequence_is_named() -> None:
    answer = MessagesAnswer("m")
    answer.event(Finished(0, "stop", Usage(1, 1, 0), "END"))
    assert (answer.whole()["stop_reason"], answer.whole()["stop_sequence"]) == ("stop_sequence", "END")


def test_anthropics_turns_become_a_chats_messages() -> None:
    body = ASK | {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: n=1;\n"}, {"type": "text", "text": "be"}],
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "text", "text": "and", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": {}}]}]},
        ],
    }  # fmt: skip
    asked = parse(MessagesRequest, json.dumps(body).encode(), images=True)
    (row,) = asked.chat(strip_billing=True).requests("me")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert row.prompt == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [call]},
        {"role": "tool", "content": UNSEEN, "tool_call_id": "c"},
        {"role": "user", "content": "and"},
    ]
    assert "billing" in str(asked.chat(strip_billing=False).messages[0])
    assert (row.max_tokens, row.seed, row.client) == (12, 3, "me")


# --- responses --------------------------------------------------------------------------------


async def test_a_response_streamed_and_whole_say_the_same() -> None:
    async with served() as server:
        whole = (await post(server, "/v1/responses", CREATE)).json()
        told = list(events((await post(server, "/v1/responses", CREATE | {"stream": True})).text))
        assert [e["type"] for e in told if not e["type"].endswith("delta")] == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added", "response.output_text.done", "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]  # fmt: skip
        assert [e["sequence_number"] for e in told] == list(range(len(told)))
        said = "".join(e["delta"] for e in told if e["type"] == "response.output_text.delta")
        assert said == whole["output"][0]["content"][0]["text"]
        assert whole["status"] == "incomplete" and whole["usage"]["output_tokens"] == 12
        assert set(told[-1]["response"]) == set(whole)


async def test_a_response_goes_on_from_one_that_is_held() -> None:
    async with served() as server, server.client() as client:
        first = (await post(server, "/v1/responses", CREATE)).json()
        then = CREATE | {"previous_response_id": first["id"], "input": "go on"}
        second = (await post(server, "/v1/responses", then)).json()
        said = first["output"][0]["content"][0]["text"]
        turns = [("user", "hello"), ("assistant", said), ("user", "go on")]
        spelt = {k: v for k, v in CREATE.items() if k != "input"} | {
            "input": [{"role": role, "content": content} for role, content in turns]
        }
        same = (await post(server, "/v1/responses", spelt)).json()
        assert second["output"][0]["content"] == same["output"][0]["content"]
        assert (await client.get(f"/v1/responses/{second['id']}")).json() == second
        assert (await client.delete(f"/v1/responses/{second['id']}")).json()["deleted"] is True
        unknown = await post(server, "/v1/responses", then | {"previous_response_id": second["id"]})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "previous_response_id")
        fleeting = (await post(server, "/v1/responses", CREATE | {"store": False})).json()
        assert (await client.get(f"/v1/responses/{fleeting['id']}")).status_code == 404


def test_the_store_keeps_to_its_ceiling_and_forgets_what_is_not_used() -> None:
    def held(name: str) -> Held:
        return Held({"id": name}, [UserMessage(role="user", content="x" * 1000)])

    store = ResponsesStore(3 * held("a").size)
    for name in "abc":
        store.put(held(name))
    assert store.get("a") is not None
    store.put(held("d"))
    assert [name for name in "abcd" if store.get(name)] == ["a", "c", "d"]
    assert store.statistics()["bytes"] <= store.statistics()["ceiling_bytes"]
    ResponsesStore(0).put(held("e"))
    assert store.remove("a") and not store.remove("a")


def test_items_of_a_response_are_told_one_after_the_other() -> None:
    asked = parse(ResponsesRequest, json.dumps(CREATE).encode())
    answer = ResponsesAnswer("m", asked)
    said = answer.opening() + "".join(
        answer.event(event)
        for event in (
            Reasoning(0, "hm", 1), Text(0, "so", 2), ToolCall(0, 0, "{", "call_1", "f"), ToolCall(0, 0, "}"),
            Finished(0, "tool_calls", Usage(9, 5, 4)),
        )
    )  # fmt: skip
    told = list(events(said))
    assert [e["item"]["type"] for e in told if e["type"] == "response.output_item.done"] == [
        "reasoning", "message", "function_call",
    ]  # fmt: skip
    assert told[-1]["type"] == "response.completed"
    call = answer.whole()["output"][2]
    assert (call["call_id"], call["name"], call["arguments"], call["status"]) == (
        "call_1",
        "f",
        "{}",
        "completed",
    )
    turns = parse(ResponsesRequest, json.dumps(CREATE | {"input": answer.whole()["output"]}).encode()).turns()
    assert len(turns) == 1  # all of it is one turn of the assistant
    failed = ResponsesAnswer("m", asked)
    last = list(events(failed.event(Failed(0, "step_failed", "why"))))[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "step_failed")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/messages", ASK | {"messages": [{"role": "user", "content": "ab " * 5000}]}, "messages"),
        (
            "/v1/messages/count_tokens",
            {"model": "tiny", "messages": TURNS, "system": "ab " * 5000},
            "messages",
        ),
        (
            "/v1/messages",
            ASK | {"messages": [*TURNS, {"role": "assistant", "content": "x"}]},
            "messages",
        ),
        ("/v1/messages", {k: v for k, v in ASK.items() if k != "max_tokens"}, "max_tokens"),
        ("/v1/messages", ASK | {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ("/v1/responses", CREATE | {"input": "ab " * 5000}, "input"),
        ("/v1/responses", CREATE | {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ("/v1/responses", CREATE | {"background": True}, "background"),
        ("/v1/responses", CREATE | {"conversation": "c"}, "conversation"),
        ("/v1/messages", ASK | {"output_config": output(DEEP)}, "output_config.format"),
        ("/v1/messages", ASK | {"output_config": output(ENDLESS)}, "output_config.format.schema"),
        ("/v1/messages", ASK | {"tools": [{"name": "f", "input_schema": ENDLESS}]}, "tools[0].input_schema"),
        ("/v1/messages", ASK | {"messages": [*TURNS, MANY_CALLS, *TURNS]}, "messages"),
        ("/v1/responses", CREATE | {"text": output(HUGE, name="x")}, "text.format"),
        ("/v1/responses", CREATE | {"text": output(ENDLESS, name="x")}, "text.format.schema"),
        (
            "/v1/responses",
            CREATE | {"tools": [{"type": "function", "name": "f", "parameters": ENDLESS}]},
            "tools[0].parameters",
        ),
        ("/v1/chat/completions", chat("x", response_format=named(DEEP)), "response_format"),
        ("/v1/chat/completions", chat("x", response_format=named(HUGE)), "response_format"),
        (
            "/v1/chat/completions",
            chat("x", chat_template_kwargs={"a": [{"b": float("nan")}]}),
            "chat_template_kwargs",
        ),
    ],
)
async def test_a_refusal_names_the_apis_own_field(path: str, body: dict[str, Any], param: str) -> None:
    async with served() as server, server.client() as client:
        refused = await client.post(path, content=json.dumps(body))  # as it is: with NaN and Infinity
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_fault_of_the_server_is_not_told_as_the_requests(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Never:
        raise RuntimeError("broken")

    monkeypatch.setattr(Front, "body", broken)
    async with served() as server:
        told = await post(server, path, ASK)
    error = told.json()["error"]
    kind = "api_error" if path == "/v1/messages" else "server_error"
    assert (told.status_code, error["type"], error["param"]) == (500, kind, None)


# --- tokens, cancelling, the document ---------------------------------------------------------


async def test_tokens_there_and_back() -> None:
    async with served() as server:
        there = (await post(server, "/tokenize", {"prompt": "the quick brown fox"})).json()
        back = (await post(server, "/detokenize", {"tokens": there["tokens"]})).json()
        assert back == {"prompt": "the quick brown fox"} and there["count"] == len(there["tokens"])
        messages = (await post(server, "/tokenize", {"messages": ASK["messages"]})).json()
        usage = (await post(server, "/v1/messages", ASK)).json()["usage"]
        assert messages["count"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
        both = await post(server, "/tokenize", {"prompt": "x", "messages": ASK["messages"]})
        assert (both.status_code, both.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("given", [None, "my-own-id"])
async def test_a_cancelled_stream_says_so_and_frees_its_row(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families.tokenizer(), "eos_token_ids", set())  # no row ends by chance
    async with served() as server, server.client() as client:
        told: list[str] = []
        body = chat("x", max_tokens=3000, stream=True)
        headers = {} if given is None else {"X-Request-Id": given}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            name = response.headers["X-Request-Id"]
            cancelled = await client.post(f"/v1/requests/{given or name}/cancel")
            assert cancelled.json() == {"id": name, "object": "request", "cancelled": True}
            async for line in response.aiter_lines():
                told += [line] if line else []
        assert given in {None, name} and (given or name in told[0])
        assert json.loads(told[-2].removeprefix("data: "))["error"]["code"] == "request_cancelled"
        assert told[-1] == "data: [DONE]"
        await wait_empty(server)
        gone = await client.post(f"/v1/requests/{name}/cancel")
        assert (gone.status_code, gone.json()["error"]["param"]) == (404, "request_id")


async def test_a_cancelled_whole_answer_of_several_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families.tokenizer(), "eos_token_ids", set())
    async with served(batch=2) as server, server.client() as client:
        answers: list[httpx.Response] = []

        async def ask() -> None:
            body = text(["a", "b", "c"], max_tokens=3000, temperature=1, seed=3)
            answers.append(await post(server, "/v1/completions", body, **{"X-Request-Id": "it"}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(10):
                while (await client.post("/v1/requests/it/cancel")).status_code == 404:
                    await trio.sleep(0.01)
        assert answers[0].status_code == 499
        assert answers[0].json()["error"]["code"] == "request_cancelled"
        assert answers[0].headers["X-Request-Id"] == "it"
        await wait_empty(server)


async def test_others_go_on_when_one_is_cancelled() -> None:
    async with served() as server, server.client() as client:
        canary = chat("sing", max_tokens=600)
        alone = await streamed(client, "/v1/chat/completions", canary)
        beside: list[Told] = []

        async def sing() -> None:
            beside.append(await streamed(client, "/v1/chat/completions", canary))

        async def ask() -> None:
            await post(server, "/v1/chat/completions", chat("x", max_tokens=3000), **{"X-Request-Id": "it"})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sing)
            nursery.start_soon(ask)
            with trio.fail_after(10):
                while (await client.post("/v1/requests/it/cancel")).status_code == 404:
                    await trio.sleep(0.01)
        assert beside[0].song == alone.song


async def test_every_route_is_in_the_document_and_every_reference_leads_somewhere() -> None:
    told = document()
    async with served() as server, server.client() as client:
        assert (await client.get("/openapi.json")).json() == json.loads(json.dumps(told))
        app = server.app
    routes = {
        (method.lower(), rule.rule.replace("<path:", "<"))
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.endpoint not in {"static", "compact"}
    }
    written = {(m, p) for p, operations in told["paths"].items() for m in operations}
    assert {(m, p.partition("<")[0]) for m, p in routes} == {(m, p.partition("{")[0]) for m, p in written}
    text = json.dumps(told)
    for name in told["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text, name
    for piece in text.split('"$ref": "#/components/schemas/')[1:]:
        assert piece.partition('"')[0] in told["components"]["schemas"]
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
