"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens."""

from quart import Quart, Response, jsonify

from motet.http.front import Front, client, streamed, under_names
from motet.http.messages_answer import PING, MessagesAnswer
from motet.http.messages_request import CountRequest, MessagesRequest
from motet.http.streaming import Events
from motet.http.whole import read_to_end

_NAMES = {
    "chat_template_kwargs": "thinking",
    "messages": "messages",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "tool_calls": "messages",
}
"""Of a chat's fields, what they came from. A message's place is not the same in both."""


def add_messages(app: Quart, front: Front, *, strip_billing: bool) -> None:
    """Add the routes."""

    @app.post("/v1/messages")
    async def messages() -> Response:
        asked = await front.body(MessagesRequest)
        front.check_model(asked.model)
        answer = MessagesAnswer(front.model)
        with under_names(_NAMES):
            rows = asked.chat(strip_billing=strip_billing).requests(client())
            stream = await front.open(rows, answer.id)
        (answer.prompt_tokens,) = stream.prompt_tokens
        if asked.stream:
            return streamed(Events(stream, answer, waiting=PING))
        await read_to_end(stream, answer)
        return jsonify(answer.whole())

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        asked = await front.body(CountRequest)
        front.check_model(asked.model)
        with under_names(_NAMES):
            (row,) = asked.chat(strip_billing=strip_billing).requests(client())
            tokens = await front.engine.tokenize(row)
        return jsonify({"input_tokens": len(tokens)})
