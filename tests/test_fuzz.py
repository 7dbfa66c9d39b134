"""Generated bad requests in all routes: each a 4xx that names its field, at once, and no stream is hurt."""

import json
import random
import statistics

import httpx
import pytest
import trio

from fuzzing import GOOD, bad_requests
from motet import InvalidRequest
from motet.http.chat_request import ChatRequest
from motet.http.messages_request import CountRequest, MessagesRequest
from motet.http.responses_request import ResponsesRequest
from motet.http.schema import Body, parse
from motet.http.text_request import TextRequest
from motet.http.token_requests import DetokenizeRequest, TokenizeRequest
from served import Told, chat, served, streamed

FORMS: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": TextRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
CANARY = chat("sing while they try", max_tokens=1500)


def could_be_served(method: str, path: str, body: bytes) -> bool:
    """Whether a mutation happens to have left a request that the models take and the engine may serve."""
    if method != "POST" or path not in FORMS:
        return False
    try:
        asked = parse(FORMS[path], body)
    except InvalidRequest:
        return False
    # What the engine refuses is generated on purpose, and told by these.
    text = json.loads(body)
    return (
        len(body) < 10_000
        and text.get("model", "default_model") == "default_model"
        and not (isinstance(asked, DetokenizeRequest) and any(not 0 <= t < 600 for t in asked.tokens))
        and not (isinstance(asked, TextRequest) and any(isinstance(t, int) for t in asked.prompt))
    )


@pytest.mark.parametrize(
    "count", [400, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
async def test_bad_requests_are_refused_by_name_at_once_and_hurt_no_stream(count: int) -> None:
    """Two clients at once, beside a stream."""
    draw = random.Random(11)
    generated = bad_requests(draw)
    took: list[float] = []
    wrong: list[object] = []
    async with served(batch=4) as server:

        async def sing(told: list[Told]) -> None:
            async with server.client() as client:
                told.append(await streamed(client, "/v1/chat/completions", CANARY))

        alone: list[Told] = []
        await sing(alone)
        beside: list[Told] = []
        over = trio.Event()

        async def keep_singing() -> None:
            while not over.is_set():
                await sing(beside)

        async def attack(client: httpx.AsyncClient) -> None:
            while len(took) < count:
                method, path, body = next(generated)
                if could_be_served(method, path, body):
                    continue
                begun = trio.current_time()
                answer = await client.request(method, path, content=body)
                took.append(trio.current_time() - begun)
                said = answer.headers.get("content-type") == "application/json"
                error = answer.json().get("error", {}) if said else {}
                if not (400 <= answer.status_code < 500 and error.get("param") and error.get("message")):
                    wrong.append((method, path, body[:300], answer.status_code, answer.text[:300]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_singing)
            async with server.client() as client, trio.open_nursery() as attackers:
                for _ in range(2):
                    attackers.start_soon(attack, client)
            over.set()
        submitted = server.engine.statistics()["batch"]["submitted_rows"]
    assert wrong == []
    assert submitted == 1 + len(beside)  # none came as far as the queue
    assert beside and all(told.song == alone[0].song for told in beside)
    median = statistics.median(took)
    print(f"{len(took)} refused, median {1000 * median:.1f} ms, longest {1000 * max(took):.0f} ms")
    assert median < 0.1


def test_each_route_takes_the_request_that_faults_are_put_into() -> None:
    """Else it would be refused for another reason than its fault."""
    for path, body in GOOD.items():
        parse(FORMS[path], json.dumps(body).encode())
    assert GOOD.keys() == FORMS.keys()
