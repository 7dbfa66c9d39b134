"""OpenAI's /v1/responses: create, stream, get, delete."""

from collections.abc import Sequence

from quart import Quart, Response, jsonify, request

from motet import Event, Finished, InvalidRequest
from motet.http.chat_request import Message
from motet.http.errors import HTTPError
from motet.http.front import Front, client, streamed, under_names
from motet.http.responses_answer import ResponsesAnswer
from motet.http.responses_request import ResponsesRequest, messages_of
from motet.http.responses_store import Held, ResponsesStore
from motet.http.streaming import Events
from motet.http.whole import read_to_end

_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Of a chat's fields, what they came from."""


class _Storing(ResponsesAnswer):
    """An answer that is held once it is complete, before its client has read its end."""

    def __init__(self, front: Front, asked: ResponsesRequest, store: ResponsesStore) -> None:
        sampling = front.engine.info.facts.sampling
        super().__init__(front.model, asked, temperature=sampling.temperature, top_p=sampling.top_p)
        self.earlier = _conversation(asked, store)
        self._store = store

    def event(self, event: Event) -> str:
        told = super().event(event)
        if isinstance(event, Finished) and self._asked.store is not False:
            turns = [*self.earlier, *self._asked.turns(), *messages_of(self.items())]
            self._store.put(Held(self.whole(), turns))
        return told


def _conversation(asked: ResponsesRequest, store: ResponsesStore) -> Sequence[Message]:
    if asked.previous_response_id is None:
        return ()
    held = store.get(asked.previous_response_id)
    if held is None:
        raise HTTPError(
            404,
            f"the response '{asked.previous_response_id[:100]}' is not held here",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return held.messages


def add_responses(app: Quart, front: Front, store: ResponsesStore) -> None:
    """Add the routes."""

    @app.post("/v1/responses")
    async def create() -> Response:
        asked = await front.body(ResponsesRequest)
        front.check_model(asked.model)
        answer = _Storing(front, asked, store)
        with under_names(_NAMES):
            rows = asked.chat(answer.earlier).requests(client())
            stream = await front.open(rows, answer.id)
        if asked.stream:
            return streamed(Events(stream, answer))
        await read_to_end(stream, answer)
        return jsonify(answer.whole())

    @app.post("/v1/responses/compact")
    async def compact() -> Response:
        # Its own route: as a response's id it would have no such method, which says less.
        raise HTTPError(404, "responses are not compacted here", param="path", code="unknown_route")

    @app.get("/v1/responses/<name>")
    async def get(name: str) -> Response:
        if request.args.get("stream", "false") != "false":
            raise InvalidRequest(
                "a held response cannot be streamed again", "stream", "unsupported_parameter"
            )
        held = store.get(name)
        if held is None:
            raise _not_found(name)
        return jsonify(held.response)

    @app.delete("/v1/responses/<name>")
    async def delete(name: str) -> Response:
        if not store.remove(name):
            raise _not_found(name)
        return jsonify({"id": name, "object": "response", "deleted": True})


def _not_found(name: str) -> HTTPError:
    return HTTPError(
        404, f"the response '{name[:100]}' is not held here", param="response_id", code="not_found"
    )
