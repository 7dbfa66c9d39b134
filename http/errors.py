"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from typing import Any

from quart import Response, jsonify

from motet import EngineDied, InvalidRequest, NotTaken

_RETRY_AFTER = 1  # seconds


class HTTPError(Exception):
    """An answer other than the one asked for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, kind, param, code)


def error_body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    """The error object that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_http_error(error: Exception) -> HTTPError:
    """The answer for what the engine raised."""
    match error:
        case HTTPError():
            return error
        case InvalidRequest():
            return HTTPError(400, error.message, param=error.param, code=error.code)
        case NotTaken(code="busy"):
            return HTTPError(
                429,
                "too many requests are waiting; try again",
                kind="rate_limit_error",
                code="queue_full",
            )
        case NotTaken():
            return HTTPError(
                503,
                "the server is shutting down",
                kind="server_error",
                code="server_draining",
            )
        case EngineDied():
            return HTTPError(503, "the engine has failed", kind="server_error", code="engine_died")
        case _:
            raise error


def row_error(code: str, message: str) -> HTTPError:
    """The answer for a row that failed before anything of it was sent."""
    status = 503 if code in {"server_draining", "server_shutdown", "queue_timeout"} else 500
    return HTTPError(status, message, kind="server_error", code=code)


def respond(error: HTTPError) -> Response:
    """The error as a response; with Retry-After where trying again makes sense."""
    response = jsonify(error.body)
    response.status_code = error.status
    if error.status in {429, 503}:
        response.headers["Retry-After"] = str(_RETRY_AFTER)
    return response
