"""The HTTP surface on a real socket: answers, refusals, disconnects, drains."""

import json
import random
import re
from typing import Any

import httpx
import pytest
import trio
import trio.lowlevel

import families
from served import Server, Told, chat, send, served, streamed, text, wait_empty

CANARY = chat("sing while they try", max_tokens=1500)


async def canary_told(server: Server) -> Told:
    async with server.client() as client:
        return await streamed(client, "/v1/chat/completions", CANARY)


async def test_chat_streamed_and_whole_say_the_same() -> None:
    async with served() as server, server.client() as client:
        told = await streamed(client, "/v1/chat/completions", chat("hello", max_tokens=30))
        whole = (await client.post("/v1/chat/completions", json=chat("hello", max_tokens=30))).json()
    assert told.text and told.done and told.finish == "length"
    assert whole["choices"][0]["message"]["content"] == told.text
    assert whole["choices"][0]["finish_reason"] == "length"
    assert told.usage is not None and told.usage["completion_tokens"] == 30
    assert whole["usage"]["prompt_tokens"] == told.usage["prompt_tokens"]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # the first had read it


async def test_completions_take_strings_lists_and_tokens() -> None:
    async with served() as server, server.client() as client:
        for prompt, rows in [
            ("abc", 1),
            (["abc", "the quick"], 2),
            ([5, 6, 7], 1),
            ([[5, 6, 7], [8, 9]], 2),
        ]:
            body = text(prompt, max_tokens=9, temperature=1, seed=5)
            answer = (await client.post("/v1/completions", json=body)).json()
            assert [choice["index"] for choice in answer["choices"]] == list(range(rows))
            assert answer["usage"]["completion_tokens"] == 9 * rows
            told = await streamed(client, "/v1/completions", body)
            assert told.usage == answer["usage"] | {
                "prompt_tokens_details": told.usage["prompt_tokens_details"]  # type: ignore[index]
            }
            assert sorted(told.text) == sorted("".join(c["text"] for c in answer["choices"]))


def written(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat("hello")),
        ("/v1/completions", text(["abc", "de"], temperature=1, seed=3)),
    ],
)
async def test_n_choices_of_each_prompt_which_counts_once(path: str, body: dict[str, Any]) -> None:
    prompts = len(body.get("prompt", [0]))
    async with served() as server, server.client() as client:
        one = (await client.post(path, json=body | {"max_tokens": 9, "seed": 5})).json()
        asked = body | {"max_tokens": 9, "n": 3}
        whole = (await client.post(path, json=asked)).json()
        told = await streamed(client, path, asked)
    said, alone = ([written(choice) for choice in answer["choices"]] for answer in (whole, one))
    assert [choice["index"] for choice in whole["choices"]] == list(range(3 * prompts))
    assert said[2::3] == alone and len(set(said)) == 3 * prompts  # the third is that of seed 3 + 2
    assert whole["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] > one["usage"]["completion_tokens"]
    assert told.texts == dict(enumerate(said)) and told.done
    assert told.usage is not None and told.usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert told.usage["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_top_p_of_0_is_greedy() -> None:
    async with served() as server, server.client() as client:
        told = [
            await streamed(client, "/v1/chat/completions", chat("hello", max_tokens=9) | more)
            for more in ({"temperature": 0}, {"top_p": 0})
        ]
    assert told[0].text and told[0].song == told[1].song


async def test_a_stop_string_ends_the_text_before_it() -> None:
    async with served() as server, server.client() as client:
        whole = await streamed(client, "/v1/chat/completions", chat("hello", max_tokens=60))
        stop = whole.text[20:23]
        cut = await streamed(
            client, "/v1/chat/completions", chat("hello", max_tokens=60, stop=[stop, "zzzz"])
        )
        assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish == "stop" and cut.done
        await wait_empty(server)


async def test_models_health_and_stats() -> None:
    async with served() as server, server.client() as client:
        models = (await client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["tiny"]
        assert (await client.get("/health")).json() == {"status": "ok"}
        stats = (await client.get("/stats")).json()
        assert set(stats["batch"]) >= {
            "configured", "mode", "active_rows", "preparing_rows", "pending_rows", "submitted_rows",
            "pending_by_priority", "displaced_rows", "kv_bytes",
        }  # fmt: skip
        assert set(stats["prompt_cache"]) >= {"entries", "bytes", "hits", "misses", "hit_tokens"}
        assert set(stats["device"]) >= {"steps", "chunks", "queue"}
        assert set(stats["actors"]) == {
            "admission", "prefill", "decode", "store", "persister", "resuming",
        }  # fmt: skip


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
OK = chat("x", max_tokens=2)
REFUSED: list[tuple[str, Any, int, str | None]] = [
    (CHAT, OK | {"stop": 5}, 400, "stop"),
    (CHAT, OK | {"stop": ["a", ""]}, 400, "stop[1]"),
    (TEXT, text(""), 400, "prompt"),
    (TEXT, text([]), 400, "prompt"),
    (TEXT, text([1, 9999]), 400, "prompt"),
    (TEXT, text([-1]), 400, "prompt"),
    (TEXT, text({"a": 1}), 400, "prompt"),
    (TEXT, text("x", echo=True), 400, "echo"),
    (TEXT, {"model": "tiny"}, 400, "prompt"),
    (TEXT, {"prompt": "x"}, 400, "model"),
    (CHAT, OK | {"messages": []}, 400, "messages"),
    (CHAT, OK | {"messages": "hello"}, 400, "messages"),
    (CHAT, OK | {"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, OK | {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    (CHAT, OK | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
     "messages[0].content[0].image_url"),
    (CHAT, OK | {"logit_bias": {"99999": 500}}, 400, "logit_bias.99999"),
    (CHAT, OK | {"seed": -1}, 400, "seed"),
    (CHAT, OK | {"seed": 1.5}, 400, "seed"),
    (CHAT, OK | {"n": 9}, 400, "n"),
    (CHAT, OK | {"response_format": {"type": "bogus"}}, 400, "response_format.type"),
    (CHAT, OK | {"response_format": "json"}, 400, "response_format"),
    (CHAT, OK | {"temperature": "hot"}, 400, "temperature"),
    (CHAT, OK | {"temperature": -0.1}, 400, "temperature"),
    (CHAT, OK | {"temperature": True}, 400, "temperature"),
    (CHAT, OK | {"top_p": -0.1}, 400, "top_p"),
    (CHAT, OK | {"top_k": -1}, 400, "top_k"),
    (CHAT, OK | {"min_p": 2}, 400, "min_p"),
    (CHAT, OK | {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, OK | {"max_tokens": "many"}, 400, "max_tokens"),
    (CHAT, OK | {"stream": "yes"}, 400, "stream"),
    (CHAT, OK | {"stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage"),
    (CHAT, OK | {"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    (CHAT, OK | {"made_up": 1}, 400, "made_up"),
    (CHAT, OK | {"model": "gpt-4"}, 404, "model"),
    (CHAT, OK | {"model": 5}, 400, "model"),
    (TEXT, text("ab " * 5000), 400, "prompt"),
    (CHAT, chat("ab " * 5000), 400, "messages"),
    (CHAT, b"\xff\xfe{}", 400, "body"),
    (CHAT, b'{"messages": [', 400, "body"),
    (CHAT, b"[]", 400, "body"),
    (CHAT, b"", 400, "body"),
    (CHAT, b" " * (40 << 20), 413, "body"),
]  # fmt: skip


# httpx leaves its body's generator behind when the 413 comes before the body is sent.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*ByteStream")
async def test_bad_requests_name_their_field_and_hurt_no_stream() -> None:
    """Each gets its 4xx with the field's name while a stream runs, whose text stays as it is alone."""
    async with served() as server, server.client() as client:
        alone = await canary_told(server)
        beside: list[Told] = []

        async def sing() -> None:
            beside.append(await canary_told(server))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sing)
            for path, body, status, param in REFUSED:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                answer = await client.post(path, content=content)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (status, param), (content[:50], error)
                assert error["message"] and error["type"] == "invalid_request_error"
            assert (await client.get("/health")).status_code == 200
        assert [told.song for told in beside] == [alone.song]


async def test_too_long_a_prompt_says_so_in_openais_words() -> None:
    async with served() as server, server.client() as client:
        answer = await client.post(TEXT, json=text([5] * 4096))
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        answer = await client.post(TEXT, json=text([5] * 4095, max_tokens=50))
        assert answer.json()["usage"]["completion_tokens"] == 1  # all that the context has room for


async def test_a_prompt_that_was_prompt_and_completion_works() -> None:
    """An exact hit: the last token is read again, for its logits."""
    async with served() as server:
        async with server.client() as client:
            first = await client.post(TEXT, json=text([9, 8, 7, 6], max_tokens=8))
            tokens = server.engine.tokenizer.encode(first.json()["choices"][0]["text"])
            again = await client.post(TEXT, json=text([9, 8, 7, 6, *tokens], max_tokens=3))
            exact = await client.post(TEXT, json=text([9, 8, 7, 6], max_tokens=8))
        assert again.status_code == 200
        assert exact.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
        assert exact.json()["choices"] == first.json()["choices"]


async def test_harmless_fields_are_accepted() -> None:
    body = OK | {"user": "u", "metadata": {"a": "b"}, "store": True, "n": 1, "logprobs": False, "tools": []}
    async with served() as server, server.client() as client:
        assert (await client.post(CHAT, json=body)).status_code == 200


async def test_past_the_queue_limit_it_is_429_with_retry_after() -> None:
    async with served(batch=1, queue_limit=1) as server, server.client() as client:
        long = chat("x", max_tokens=2000)
        running = await send(server.port, CHAT, long | {"stream": True})
        await running.receive_some(100)
        waiting = await send(server.port, CHAT, long)
        with trio.fail_after(5):
            while server.engine.statistics()["batch"]["pending_rows"] < 1:
                await trio.sleep(0.001)
        refused = await client.post(CHAT, json=long)
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "queue_full"
        await waiting.aclose()
        await running.aclose()
        await wait_empty(server)


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"stream": True, "resumable": True}])
async def test_more_rows_than_can_ever_wait_are_400_and_not_429(more: dict[str, Any]) -> None:
    async with served(queue_limit=5) as server, server.client() as client:
        for prompts, n, param in ((3, 2, "n"), (6, 1, "prompt")):
            refused = await client.post(TEXT, json=text(["x"] * prompts, n=n, max_tokens=2, **more))
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, param)
            assert "6 rows, of at most 5" in error["message"]
        taken = await client.post(TEXT, json=text(["x"] * 5, max_tokens=2, **more))
        assert taken.status_code == 200
        await wait_empty(server)


async def test_past_the_queue_timeout_it_is_503_with_retry_after_or_an_error_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        families.tokenizer(), "eos_token_ids", set()
    )  # the running row does not end by chance
    async with served(batch=1, queue_timeout=0.2) as server, server.client() as client:
        running = await send(server.port, CHAT, chat("x", max_tokens=3000, stream=True))
        await running.receive_some(100)
        refused = await client.post(CHAT, json=chat("y", max_tokens=5))
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "queue_timeout"
        told = await streamed(client, CHAT, chat("y", max_tokens=5))
        assert told.error is not None and told.error["code"] == "queue_timeout" and told.done
        await trio.aclose_forcefully(running)
        await wait_empty(server)


async def test_a_row_beyond_the_budget_is_400_with_the_field_at_fault() -> None:
    async with served(kv_budget=1000) as server, server.client() as client:
        refused = await client.post(CHAT, json=chat("x", max_tokens=5, stream=True))
        error = refused.json()["error"]
    assert refused.status_code == 400
    assert (error["code"], error["param"]) == ("kv_budget_exceeded", "max_tokens")


async def test_256_connections_at_once_are_all_answered() -> None:
    async with served() as server:
        answers: list[int] = []

        async def ask(client: httpx.AsyncClient, i: int) -> None:
            answer = await client.post(CHAT, json=chat(f"number {i}", max_tokens=2))
            answers.append(answer.status_code)

        limits = httpx.Limits(max_connections=256)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            async with trio.open_nursery() as nursery:
                for i in range(256):
                    nursery.start_soon(ask, client, i)
        assert answers == [200] * 256
        await wait_empty(server)


# --- disconnects ------------------------------------------------------------------------------

LONG = "fox " * 2900  # some 3,000 tokens


async def leave(server: Server, draw: random.Random, seen: dict[str, int]) -> None:
    """One client that leaves in some phase: at once, queued, in prefill, or in decode."""
    long = draw.random() < 0.3
    body = chat(f"{draw.random()} {LONG if long else 'short'}", max_tokens=1000)
    phase = draw.choice(["at once", "soon", "decode"])
    stream = await send(server.port, CHAT, body | {"stream": phase == "decode" or draw.random() < 0.5})
    if phase == "soon":
        await trio.sleep(draw.random() * 0.05)
    elif phase == "decode":
        said = b""
        while not re.search(rb'"content":"[^"]', said):
            data = await stream.receive_some(65536)
            assert data
            said += data
    seen[phase] = seen.get(phase, 0) + 1
    await trio.aclose_forcefully(stream)


async def test_clients_that_leave_free_their_rows() -> None:
    """200 disconnects in random order and phases beside a stream: it is unchanged, and nothing is held."""
    draw = random.Random(7)
    async with served(batch=8, prompt_cache_bytes=1 << 24) as server:
        alone = await canary_told(server)
        seen: dict[str, int] = {}
        beside: list[Told] = []
        left = trio.Event()

        async def sing() -> None:
            while not left.is_set():
                beside.append(await canary_told(server))

        async def several() -> None:
            for _ in range(20):
                await leave(server, draw, seen)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sing)
            async with trio.open_nursery() as leavers:
                for _ in range(10):
                    leavers.start_soon(several)
            left.set()
        assert sum(seen.values()) == 200 and len(seen) == 3
        assert all(told.song == alone.song for told in beside)
        await wait_empty(server)

        whole: list[Told] = []

        async def again(client: httpx.AsyncClient) -> None:
            whole.append(await streamed(client, CHAT, CANARY))

        async with server.client() as client, trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(again, client)
        assert [told.text for told in whole] == [alone.text] * 8
        await wait_empty(server)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_queued_client_that_leaves_is_gone_at_once(streaming: bool) -> None:
    async with served(batch=1) as server:
        running = await send(server.port, CHAT, chat("x", max_tokens=3000, stream=True))
        await running.receive_some(100)
        queued = await send(server.port, CHAT, chat("y", max_tokens=5, stream=streaming))
        with trio.fail_after(5):
            while server.engine.statistics()["batch"]["pending_rows"] != 1:
                await trio.sleep(0.001)
        await trio.aclose_forcefully(queued)
        with trio.fail_after(0.5):
            while server.engine.statistics()["batch"]["pending_rows"] != 0:
                await trio.sleep(0.001)
        await trio.aclose_forcefully(running)
        await wait_empty(server)


async def test_a_drain_ends_streams_truthfully_and_refuses_new_work() -> None:
    async with served() as server, server.client() as client:
        told: dict[int, Told] = {}

        async def stream(tokens: int) -> None:
            told[tokens] = await streamed(client, CHAT, chat("x", max_tokens=tokens))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, 60)
            nursery.start_soon(stream, 3500)
            with trio.fail_after(5):
                while server.engine.statistics()["batch"]["active_rows"] < 2:
                    await trio.sleep(0.001)
            nursery.start_soon(server.engine.drain, 60)
            await trio.lowlevel.checkpoint()
            refused = await client.post(CHAT, json=OK)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert (await client.get("/health")).json() == {"status": "draining"}
            with trio.fail_after(60):
                while not told:
                    await trio.sleep(0.01)
            nursery.start_soon(server.engine.drain, 0)  # the end of the grace
        short, cut = told[60], told[3500]
        assert short.finish == "length" and short.done and short.error is None
        assert cut.error is not None and cut.error["code"] == "server_shutdown" and cut.done
        assert server.engine.over.is_set()
