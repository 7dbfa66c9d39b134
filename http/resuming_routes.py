"""Taking up a stream: GET /v1/requests/{id}/stream, and what the generating routes do for the same."""

from quart import Quart, Response, request

from motet import InvalidRequest
from motet.http.completions import Answer
from motet.http.front import Front, streamed
from motet.http.resuming import WAITING, Numbered, Resume, last_event, taken_up
from motet.http.streaming import Events


def add_resuming(app: Quart, front: Front) -> None:
    """Add the route."""

    @app.get("/v1/requests/<name>/stream")
    async def stream(name: str) -> Response:
        last = last_event(request.headers)
        if last is not None and last.id != name:
            raise InvalidRequest(f"the Last-Event-ID is not of '{name[:100]}'", "Last-Event-ID")
        return await take_up(front, last or Resume(id=name, received=0))


async def take_up(front: Front, where: Resume, prefix: str = "") -> Response:
    """A stream from where its client lost it.

    Args:
        front: the engine.
        where: which stream, and from where on.
        prefix: what the ids of the route's responses begin with.
    """
    taken, identity = await front.entered(taken_up(front.engine, where, prefix))
    front.note(taken.stream, identity.id)
    writer = Numbered(Answer(identity, front.model), where.received)
    return streamed(Events(taken.stream, writer, WAITING))
