"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens."""

from quart import Quart, Response, jsonify

from motet import Request, Stream
from motet.http.front import Front, client, streamed
from motet.http.messages_answer import PING, MessagesAnswer
from motet.http.messages_request import CountRequest, MessagesRequest
from motet.http.streaming import Events
from motet.http.whole import read_to_end


def add_messages(app: Quart, front: Front, *, strip_billing: bool) -> None:
    """Add the routes."""

    @app.post("/v1/messages")
    async def messages() -> Response:
        asked = await front.body(MessagesRequest)
        front.check_model(asked.model)
        rows = asked.chat(strip_billing=strip_billing).requests(client())
        answer = MessagesAnswer(front.model)
        stream = await front.open(rows, answer.id)
        (answer.prompt_tokens,) = stream.prompt_tokens
        if asked.stream:
            return streamed(Events(stream, answer, waiting=PING))
        return await _whole(stream, answer)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        asked = await front.body(CountRequest)
        front.check_model(asked.model)
        (row,) = asked.chat(strip_billing=strip_billing).requests(client())
        return jsonify({"input_tokens": await _count(front, row)})


async def _whole(stream: Stream, answer: MessagesAnswer) -> Response:
    await read_to_end(stream, answer)
    return jsonify(answer.whole())


async def _count(front: Front, row: Request) -> int:
    return len(await front.engine.tokenize(row))
