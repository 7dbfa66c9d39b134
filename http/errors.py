"""Errors in the shapes of OpenAI's and Anthropic's APIs."""

from typing import Any

from quart import Response, jsonify

from motet import EngineDied, InvalidRequest, NotTaken

_RETRY_AFTER = 1  # seconds

CANCELLED = 499
"""nginx's status for a request that was given up; clients do not try it again, as they would a 409."""


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
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code

    @property
    def openai(self) -> dict[str, Any]:
        """The error object that OpenAI's clients read."""
        said = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": said}

    @property
    def anthropic(self) -> dict[str, Any]:
        """The error object that Anthropic's clients read; ``param`` and ``code`` are ours."""
        kind = anthropic_kind(self.status)
        said = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        return {"type": "error", "error": said}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_kind(status: int) -> str:
    """Anthropic's name for what a status says."""
    return _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")


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
    return HTTPError(row_status(code), message, kind="server_error", code=code)


def row_status(code: str) -> int:
    """The status that says how a row failed."""
    if code == "request_cancelled":
        return CANCELLED
    return 503 if code in {"server_draining", "server_shutdown", "queue_timeout"} else 500


def respond(error: HTTPError, *, anthropic: bool = False) -> Response:
    """The error as a response; with Retry-After where trying again makes sense."""
    response = jsonify(error.anthropic if anthropic else error.openai)
    response.status_code = error.status
    if error.status in {429, 503}:
        response.headers["Retry-After"] = str(_RETRY_AFTER)
    return response
