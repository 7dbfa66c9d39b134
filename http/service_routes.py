"""The routes beside those that generate: models, tokens, cancelling, health, statistics, /openapi.json."""

from typing import Any

from quart import Quart, Response, jsonify

from motet import Failed, Finished, StreamGone
from motet.http.errors import HTTPError
from motet.http.front import Front
from motet.http.openapi import document
from motet.http.responses_store import ResponsesStore
from motet.http.token_requests import DetokenizeRequest, TokenizeRequest


def add_services(app: Quart, front: Front, store: ResponsesStore) -> None:
    """Add the routes."""
    engine = front.engine

    def described() -> dict[str, Any]:
        one: dict[str, Any] = {
            "id": front.model, "object": "model", "created": front.started, "owned_by": "motet",
        }  # fmt: skip
        if engine.info.facts.context is not None:
            one["max_model_len"] = engine.info.facts.context
        return one

    @app.get("/v1/models")
    async def models() -> Response:
        return jsonify({"object": "list", "data": [described()]})

    @app.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        front.check_model(name)
        return jsonify(described())

    @app.post("/tokenize")
    async def tokenize() -> Response:
        asked = await front.body(TokenizeRequest)
        if asked.model is not None:
            front.check_model(asked.model)
        tokens = await engine.tokenize(asked.request())
        context = engine.info.facts.context
        return jsonify({"tokens": tokens, "count": len(tokens), "max_model_len": context})

    @app.post("/detokenize")
    async def detokenize() -> Response:
        asked = await front.body(DetokenizeRequest)
        if asked.model is not None:
            front.check_model(asked.model)
        return jsonify({"prompt": await engine.detokenize(asked.tokens, "tokens")})

    @app.post("/v1/requests/<name>/cancel")
    async def cancel(name: str) -> Response:
        if not (front.running.cancel(name) or await _cancelled_unread(front, name)):
            raise HTTPError(
                404, f"no request '{name[:100]}' is running", param="request_id", code="request_not_found"
            )
        return jsonify({"id": name, "object": "request", "cancelled": True})

    @app.get("/health")
    async def health() -> tuple[Response, int]:
        state = engine.health
        return jsonify({"status": state}), 200 if state == "ok" else 503

    @app.get("/stats")
    async def stats() -> Response:
        return jsonify(engine.statistics() | {"responses": store.statistics()})

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return jsonify(document())


async def _cancelled_unread(front: Front, name: str) -> bool:
    """Cancel a resumable stream that nobody reads; false if none of that name runs."""
    try:
        taken = await front.entered(front.engine.take_up(name))
    except StreamGone:
        return False
    ends = sum(isinstance(event, Finished | Failed) for event in taken.stream.ready())
    taken.stream.cancel()
    return ends < len(taken.stream.prompt_tokens)
