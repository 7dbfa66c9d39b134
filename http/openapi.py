"""The OpenAPI document, made from the models that check the bodies."""

import functools
from typing import Any

import attrs
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from motet.http.chat_request import ChatRequest
from motet.http.messages_request import CountRequest, MessagesRequest
from motet.http.responses_request import ResponsesRequest
from motet.http.text_request import TextRequest
from motet.http.token_requests import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

_STRING = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_MODEL = _object(id=_STRING, object={"const": "model"}, created=_COUNT, owned_by=_STRING)
_FAULT = _object(message=_STRING, type=_STRING, param=_NULLABLE, code=_NULLABLE)
_USAGE = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_CHOICE = _object(index=_COUNT, finish_reason=_STRING)
_COMPLETION = _object(
    id=_STRING, object=_STRING, created=_COUNT, model=_STRING, choices=_list(_CHOICE), usage=_USAGE
)

ANSWERS: dict[str, dict[str, Any]] = {
    "Cancelled": _object(id=_STRING, object={"const": "request"}, cancelled={"const": True}),
    "ChatCompletion": _COMPLETION,
    "Count": _object(input_tokens=_COUNT),
    "Deleted": _object(id=_STRING, object={"const": "response"}, deleted={"const": True}),
    "Error": _object(error=_FAULT),
    "Health": _object(status={"enum": ["ok", "draining", "failed"]}),
    "Message": _object(
        id=_STRING,
        type={"const": "message"},
        role={"const": "assistant"},
        content=_list({"type": "object"}),
        stop_reason=_NULLABLE,
        stop_sequence=_NULLABLE,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, cache_read_input_tokens=_COUNT),
    ),
    "MessageError": _object(type={"const": "error"}, error=_FAULT),
    "Model": _MODEL,
    "Models": _object(object={"const": "list"}, data=_list({"$ref": "#/components/schemas/Model"})),
    "Response": _object(
        id=_STRING, object={"const": "response"}, status=_STRING, output=_list({"type": "object"})
    ),
    "Statistics": {"type": "object"},
    "TextCompletion": _COMPLETION,
}
"""The answers' shapes, as far as clients have to rely on them."""


@attrs.frozen
class Route:
    """One route: what it takes and gives."""

    method: str
    path: str
    summary: str
    answer: str | None
    form: type[BaseModel] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()


_GENERATING = (400, 404, 413, 429, 499, 500, 503)
_COUNTING = (400, 404, 413, 503)

ROUTES = (
    Route(
        "post", "/v1/chat/completions", "A chat completion", "ChatCompletion", ChatRequest, True, _GENERATING
    ),
    Route("post", "/v1/completions", "A text completion", "TextCompletion", TextRequest, True, _GENERATING),
    Route("post", "/v1/responses", "A response", "Response", ResponsesRequest, True, _GENERATING),
    Route("get", "/v1/responses/{response_id}", "A response that is held", "Response", errors=(400, 404)),
    Route("delete", "/v1/responses/{response_id}", "Forget a response", "Deleted", errors=(404,)),
    Route("post", "/v1/messages", "A message", "Message", MessagesRequest, True, _GENERATING),
    Route("post", "/v1/messages/count_tokens", "A message's tokens", "Count", CountRequest, errors=_COUNTING),
    Route("post", "/v1/requests/{request_id}/cancel", "Cancel a request", "Cancelled", errors=(404,)),
    Route("get", "/v1/requests/{request_id}/stream", "A stream, taken up", None, None, True, (400, 404, 503)),
    Route("get", "/v1/models", "The models", "Models"),
    Route("get", "/v1/models/{model}", "A model", "Model", errors=(404,)),
    Route("post", "/tokenize", "A prompt's tokens", "TokenizeAnswer", TokenizeRequest, errors=_COUNTING),
    Route("post", "/detokenize", "Tokens' text", "DetokenizeAnswer", DetokenizeRequest, errors=_COUNTING),
    Route("get", "/health", "Whether the server is well", "Health", errors=(503,)),
    Route("get", "/stats", "Numbers of the moment", "Statistics"),
    Route("get", "/openapi.json", "This document", "Statistics"),
)

_MEANINGS = {
    400: "The request cannot be served as it stands; `param` names the field",
    401: "No API key, or a wrong one",
    403: "The Host header has a name that is not the server's",
    404: "There is no such thing",
    405: "There is no such method",
    413: "The body is too large",
    429: "Too many requests wait; Retry-After says when to try again",
    499: "The request was cancelled",
    500: "It could not go on",
    503: "The server is draining, has failed, or has let the request wait for too long",
}


@functools.cache
def document() -> dict[str, Any]:
    """The document."""
    forms = [route.form for route in ROUTES if route.form is not None]
    models: list[type[BaseModel]] = [*forms, TokenizeAnswer, DetokenizeAnswer]
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas = definitions["$defs"] | ANSWERS
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Motet", "version": "1", "description": "One model, many streams."},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(route.answer)}} if route.answer else {}
    if route.streams:
        content["text/event-stream"] = {"schema": _STRING}
    error = "MessageError" if route.path.startswith("/v1/messages") else "Error"
    unwell = "Health" if route.path == "/health" else error
    operation: dict[str, Any] = {
        "operationId": f"{route.method} {route.path}",
        "summary": route.summary,
        "responses": {"200": {"description": route.summary, "content": content}}
        | {
            str(status): {
                "description": _MEANINGS[status],
                "content": {"application/json": {"schema": _ref(unwell if status == 503 else error)}},
            }
            for status in sorted({*route.errors, 401, 403, 405})
        },
    }
    if route.form is not None:
        body = {"application/json": {"schema": _ref(route.form.__name__)}}
        operation["requestBody"] = {"required": True, "content": body}
    if "{" in route.path:
        name = route.path[route.path.index("{") + 1 : route.path.index("}")]
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _STRING}]
    return operation


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
