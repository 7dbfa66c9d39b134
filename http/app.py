"""The application: its routes, its guards, and its errors. A client of the engine and nothing else."""

from quart import Quart, Response, g, jsonify, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from motet import Engine, InvalidRequest, NotTaken
from motet.http.access import Access
from motet.http.chat_request import ChatRequest
from motet.http.completions import CHAT, TEXT, Answer, Identity, Kind
from motet.http.connection import Exchange, NoWebSocket
from motet.http.errors import HTTPError, as_http_error, respond
from motet.http.front import Front, client, request_id, streamed
from motet.http.messages_routes import add_messages
from motet.http.responses_routes import add_responses
from motet.http.responses_store import ResponsesStore
from motet.http.resuming import WAITING, Numbered, last_event
from motet.http.resuming_routes import add_resuming, take_up
from motet.http.service_routes import add_services
from motet.http.streaming import Events
from motet.http.text_request import TextRequest
from motet.http.whole import read_to_end

BODY_LIMIT = 32 << 20
"""Bytes of a request's body at most."""

RESPONSES_BYTES = 64 << 20
"""Bytes of held responses at most, unless it is said otherwise."""

_READ_ANYWAY = 1 << 20  # bytes of a refused body that are read, so that its connection stays open

_OPEN = frozenset({"/health"})  # paths that need no key


def make_app(
    engine: Engine,
    model: str,
    access: Access | None = None,
    *,
    responses_bytes: int = RESPONSES_BYTES,
    strip_billing: bool = False,
    images: bool = False,
) -> Quart:
    """The application.

    Args:
        engine: what it serves.
        model: the id that requests name and answers carry.
        access: who may ask; everyone if absent.
        responses_bytes: ceiling of the responses that are held for later ones to go on from.
        strip_billing: take the line that changes with every request off Anthropic clients' system prompts.
        images: put a note in the place of images rather than refuse them.
    """
    app = QuartTrio("motet")
    app.asgi_http_class = Exchange
    app.asgi_websocket_class = NoWebSocket
    app.config["RESPONSE_TIMEOUT"] = None  # streams last as long as they last
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.url_map.merge_slashes = False  # an odd path is a 404, and no redirect
    front = Front(engine, model, images)
    store = ResponsesStore(responses_bytes)
    _guard(app, access or Access())
    _say_errors(app)

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await _complete(front, CHAT, ChatRequest)

    @app.post("/v1/completions")
    async def completions() -> Response:
        return await _complete(front, TEXT, TextRequest)

    add_messages(app, front, strip_billing=strip_billing)
    add_responses(app, front, store)
    add_resuming(app, front)
    add_services(app, front, store)
    return app


async def _complete(front: Front, kind: Kind, form: type[ChatRequest | TextRequest]) -> Response:
    asked = await front.body(form)
    front.check_model(asked.model)
    where = asked.resume or last_event(request.headers)
    if where is not None:
        return await take_up(front, where, kind.prefix)
    requests, n = asked.requests(client()), asked.n or 1
    identity = Identity.new(kind, len(requests), n, asked.include_usage)
    answer = Answer(identity, front.model)
    if asked.resumable:
        if not asked.stream:
            raise InvalidRequest("'resumable' needs 'stream': true", "resumable", "invalid_value")
        stream = await front.open(requests, identity.id, identity)
        return streamed(Events(stream, Numbered(answer), WAITING))
    stream = await front.open(requests, identity.id)
    if asked.stream:
        return streamed(Events(stream, answer))
    await read_to_end(stream, answer)
    return jsonify(answer.whole())


def _guard(app: Quart, access: Access) -> None:
    @app.before_request
    async def check() -> Response | None:
        access.check_host(request.headers.get("Host", ""))
        origin = access.allowed_origin(request.headers.get("Origin"))
        if request.method == "OPTIONS" and origin and "Access-Control-Request-Method" in request.headers:
            return Response("", 204)
        if request.path not in _OPEN:
            g.key = access.check_key(request.headers)
        g.request_id = request_id(request.headers)
        return None

    @app.after_request
    async def note(response: Response) -> Response:
        if name := g.get("request_id"):
            response.headers["X-Request-Id"] = name
            if request.path.startswith("/v1/messages"):
                response.headers["Request-Id"] = name  # where Anthropic's clients look
        if origin := access.allowed_origin(request.headers.get("Origin")):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Request-Id, Retry-After"
            response.headers["Vary"] = "Origin"
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
                wanted = request.headers.get("Access-Control-Request-Headers", "")
                response.headers["Access-Control-Allow-Headers"] = wanted
                response.headers["Access-Control-Max-Age"] = "600"
        return response


def _say_errors(app: Quart) -> None:
    def said(error: HTTPError) -> Response:
        return respond(error, anthropic=request.path.startswith("/v1/messages"))

    @app.errorhandler(HTTPError)
    @app.errorhandler(InvalidRequest)
    @app.errorhandler(NotTaken)
    async def refused(error: Exception) -> Response:
        await _read_rest()
        return said(as_http_error(error))

    @app.errorhandler(RequestEntityTooLarge)
    async def too_large(_: Exception) -> Response:
        message = f"the body is larger than {BODY_LIMIT} bytes"
        return said(HTTPError(413, message, param="body", code="request_too_large"))

    @app.errorhandler(NotFound)
    async def not_found(_: Exception) -> Response:
        await _read_rest()
        message = f"there is no route {request.path[:100]}"
        return said(HTTPError(404, message, param="path", code="unknown_route"))

    @app.errorhandler(MethodNotAllowed)
    async def wrong_method(error: MethodNotAllowed) -> Response:
        await _read_rest()
        methods = ", ".join(sorted(error.valid_methods or ()))
        message = f"{request.path[:100]} takes {methods}, not {request.method[:20]}"
        response = said(HTTPError(405, message, param="method", code="method_not_allowed"))
        response.headers["Allow"] = methods
        return response

    @app.errorhandler(HTTPException)
    async def other(error: HTTPException) -> Response:
        status, message = error.code or 500, error.description or error.name
        if status >= 500:
            return said(HTTPError(status, message, kind="server_error"))
        return said(HTTPError(status, message, param="body"))


async def _read_rest() -> None:
    """Read the body of a request that is refused without it.

    hypercorn closes the connection else, under the hands of a client that sends its next request on it.
    """
    if (request.content_length or 0) <= _READ_ANYWAY:
        await request.get_data()
