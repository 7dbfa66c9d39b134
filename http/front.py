"""What the routes share: reading a body, opening rows, naming and cancelling what runs."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar, cast

import attrs
import trio
from pydantic import ValidationError
from quart import Response, g, request
from werkzeug.datastructures import Headers

from motet import Engine, InvalidRequest, NotTaken, Request, Stream
from motet.http.connection import LEASES
from motet.http.errors import HTTPError, as_http_error
from motet.http.schema import B, parse
from motet.http.streaming import Events

T = TypeVar("T")

_PARSE_APART = 1 << 16  # bytes from which a body is parsed in a worker thread
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Running:
    """What runs, by the ids under which it can be cancelled."""

    def __init__(self) -> None:
        self._streams: dict[str, list[Stream]] = {}

    @contextlib.contextmanager
    def named(self, ids: Sequence[str], stream: Stream) -> Iterator[None]:
        """The stream can be cancelled by each of the ids, for as long as the block lasts."""
        for name in ids:
            self._streams.setdefault(name, []).append(stream)
        try:
            yield
        finally:
            for name in ids:
                self._streams[name].remove(stream)
                if not self._streams[name]:
                    del self._streams[name]

    def cancel(self, name: str) -> bool:
        """Cancel what has this id, all of it if several do; false if nothing has."""
        streams = self._streams.get(name, [])
        for stream in streams:
            stream.cancel()
        return bool(streams)


@attrs.frozen
class Front:
    """The engine as the routes use it.

    Args:
        engine: what is served.
        model: the id that requests name and answers carry.
        images: whether images in prompts become a note rather than a refusal.
    """

    engine: Engine
    model: str
    images: bool = False
    running: Running = attrs.Factory(Running)
    started: int = attrs.Factory(lambda: int(time.time()))

    async def body(self, form: type[B]) -> B:
        """The request's body, parsed.

        Raises:
            InvalidRequest: it is not as the form says.
            NotTaken: the server is draining; then it is not even parsed.
        """
        data = await request.get_data()
        assert isinstance(data, bytes)
        if self.engine.health == "draining":
            raise NotTaken("draining")
        read = partial(parse, form, data, images=self.images)
        if len(data) < _PARSE_APART:
            return read()
        return await trio.to_thread.run_sync(read)

    def check_model(self, asked: str) -> None:
        """The id itself or its last part; 'default_model' is what mlx_lm.server calls its own.

        Raises:
            HTTPError: 404.
        """
        if asked not in {"default_model", self.model, self.model.rstrip("/").rpartition("/")[2]}:
            raise HTTPError(
                404,
                f"the model '{asked}' does not exist: this server has '{self.model}'",
                param="model",
                code="model_not_found",
            )

    async def open(self, rows: list[Request], name: str, label: object = None) -> Stream:
        """The rows' stream; it ends with this HTTP request, however that ends.

        Args:
            rows: what to generate.
            name: the answer's id, by which it can be cancelled; as by the one that the client gave.
            label: if there is one, the stream does not end with the request: it can be taken up by its name,
                and this is what comes with it.
        """
        engine = self.engine
        opening = engine.open_rows(rows) if label is None else engine.open_resumable(rows, name, label)
        stream = await self.entered(opening)
        self.note(stream, name)
        return stream

    async def entered(self, opening: AbstractAsyncContextManager[T]) -> T:
        """What is opened; it is left with this HTTP request, however that ends."""
        leases: contextlib.AsyncExitStack = cast(dict[str, Any], request.scope)[LEASES]
        try:
            return await leases.enter_async_context(opening)
        except Exception as error:
            raise as_http_error(error) from error

    def note(self, stream: Stream, name: str) -> None:
        """The stream can be cancelled by this name, and by the one that the client gave."""
        g.request_id = given = request_id(request.headers) or name
        leases: contextlib.AsyncExitStack = cast(dict[str, Any], request.scope)[LEASES]
        leases.enter_context(self.running.named(list({name, given}), stream))


def request_id(headers: Headers) -> str | None:
    """The id that a client gave its request.

    Raises:
        InvalidRequest: it is none.
    """
    given = headers.get("X-Request-Id")
    if given is not None and not _REQUEST_ID.fullmatch(given):
        raise InvalidRequest(
            "an X-Request-Id has 1 to 128 printable ASCII characters and no spaces", "X-Request-Id"
        )
    return given


@contextlib.contextmanager
def under_names(names: Mapping[str, str]) -> Iterator[None]:
    """Refusals of a chat that another API's request became name that API's fields.

    Args:
        names: of a chat's fields, each with what it came from.

    Raises:
        HTTPError: what was raised within, with the field's other name.
    """
    try:
        yield
    except (InvalidRequest, HTTPError) as error:
        told = as_http_error(error)
        name = names.get(re.split(r"[.\[]", told.param or "", maxsplit=1)[0])
        if name is None:
            raise
        message = told.message.replace(f"'{told.param}'", f"'{name}'")
        raise HTTPError(told.status, message, kind=told.kind, param=name, code=told.code) from None
    except ValidationError as error:  # a chat takes less of something than the other API does
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else "body"
        name = names.get(field, field)
        raise HTTPError(400, f"'{name}': {first['msg']}", param=name, code="invalid_value") from None


def client() -> str:
    """Whose the request is; admission is fair between clients.

    Where keys are asked for, the key's: else one holder could pass for many. Else what the client calls
    itself, or where it is: so the agents of one program share one turn.
    """
    key: str | None = g.get("key")
    return key or request.headers.get("X-Client-Id", "")[:128] or request.remote_addr or ""


def streamed(events: Events) -> Response:
    """A response that goes on for as long as the events do."""
    response = Response(events, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.timeout = None
    return response
