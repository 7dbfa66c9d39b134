"""The routes. A client of the engine and nothing else: whatever it can do, a library user can do."""

import time
from typing import Any, cast

import trio
from quart import Quart, Response, jsonify, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from motet import Engine, Failed, InvalidRequest, NotTaken, Request, Stream
from motet.http.chat_request import ChatRequest
from motet.http.completions import CHAT, TEXT, Answer, Kind
from motet.http.connection import LEASES, Exchange
from motet.http.errors import HTTPError, as_http_error, respond, row_error
from motet.http.schema import B, parse
from motet.http.streaming import Events
from motet.http.text_request import TextRequest

BODY_LIMIT = 32 << 20
"""Bytes of a request's body at most."""

_PARSE_APART = 1 << 16  # bytes from which a body is parsed in a worker thread


def make_app(engine: Engine, model: str) -> Quart:
    """The application.

    Args:
        engine: what it serves.
        model: the id that requests name and answers carry.
    """
    app = QuartTrio("motet")
    app.asgi_http_class = Exchange
    app.config["RESPONSE_TIMEOUT"] = None  # streams last as long as they last
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    started = int(time.time())

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await _complete(engine, model, CHAT, ChatRequest)

    @app.post("/v1/completions")
    async def completions() -> Response:
        return await _complete(engine, model, TEXT, TextRequest)

    @app.get("/v1/models")
    async def models() -> Response:
        one = {"id": model, "object": "model", "created": started, "owned_by": "motet"}
        if engine.info.facts.context is not None:
            one["max_model_len"] = engine.info.facts.context
        return jsonify({"object": "list", "data": [one]})

    @app.get("/health")
    async def health() -> tuple[Response, int]:
        state = engine.health
        return jsonify({"status": state}), 200 if state == "ok" else 503

    @app.get("/stats")
    async def stats() -> Response:
        return jsonify(engine.statistics())

    @app.errorhandler(HTTPError)
    @app.errorhandler(InvalidRequest)
    @app.errorhandler(NotTaken)
    async def refused(error: Exception) -> Response:
        return respond(as_http_error(error))

    @app.errorhandler(RequestEntityTooLarge)
    async def too_large(_: Exception) -> Response:
        message = f"the body is larger than {BODY_LIMIT} bytes"
        return respond(HTTPError(413, message, param="body", code="request_too_large"))

    @app.errorhandler(HTTPException)
    async def other(error: HTTPException) -> Response:
        return respond(HTTPError(error.code or 500, error.description or error.name))

    return app


async def _complete(
    engine: Engine, model: str, kind: Kind, form: type[ChatRequest | TextRequest]
) -> Response:
    if engine.health == "draining":  # before the body is even parsed
        raise NotTaken("draining")
    asked = await _body(form)
    _check_model(asked.model, model)
    requests, n = asked.requests(_client()), asked.n or 1
    stream = await _open(engine, requests)
    answer = Answer(kind, model, len(requests), n, asked.include_usage)
    if not asked.stream:
        return jsonify(await _whole(stream, answer))
    response = Response(Events(stream, answer), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.timeout = None
    return response


async def _body(form: type[B]) -> B:
    """The request's body, parsed."""
    data = await request.get_data()
    assert isinstance(data, bytes)
    if len(data) < _PARSE_APART:
        return parse(form, data)
    return await trio.to_thread.run_sync(parse, form, data)


def _client() -> str:
    """Whose the request is: admission is fair between clients."""
    named: str | None = request.headers.get("X-Client-Id")
    return named or request.remote_addr or ""


def _check_model(asked: str, model: str) -> None:
    """The id itself or its last part; 'default_model' is what mlx_lm.server calls its own."""
    if asked not in {"default_model", model, model.rstrip("/").rpartition("/")[2]}:
        raise HTTPError(
            404,
            f"the model '{asked}' does not exist: this server has '{model}'",
            param="model",
            code="model_not_found",
        )


async def _open(engine: Engine, requests: list[Request]) -> Stream:
    """The rows' stream; it ends with this HTTP request, however that ends."""
    leases = cast(dict[str, Any], request.scope)[LEASES]
    try:
        stream: Stream = await leases.enter_async_context(engine.open_rows(requests))
    except Exception as error:
        raise as_http_error(error) from error
    return stream


async def _whole(stream: Stream, answer: Answer) -> dict[str, Any]:
    try:
        async for event in stream:
            if isinstance(event, Failed):
                raise row_error(event.code, event.message)
            answer.event(event)
    except Exception as error:
        raise as_http_error(error) from error
    return answer.whole()
