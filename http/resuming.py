"""Streams that can be taken up again by those who lost them: how their events are numbered, and found again.

Each event has the id ``<response id>:<number>``. It numbers events and not tokens: a token that ends no
character makes none, and one may make several.
"""

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Annotated

import attrs
from annotated_types import Ge, Le, MinLen
from werkzeug.datastructures import Headers

from motet import Engine, Event, InvalidRequest, StreamGone, TakenUp
from motet.http.completions import Answer, Identity
from motet.http.errors import HTTPError
from motet.http.schema import Body

_EVENT_ID = re.compile(r"([\w-]{1,128}):(\d{1,9})", re.ASCII)

WAITING = ": waiting\n"
"""A comment without the empty line behind it, at which OpenAI's client would see an event once it has seen an
id."""


class Resume(Body):
    """Where a stream is to be taken up."""

    id: Annotated[str, MinLen(1)]
    """The response's."""
    received: Annotated[int, Ge(0), Le(1 << 31)]
    """How many of its events have come: the number in the last one's id."""


def last_event(headers: Headers) -> Resume | None:
    """What ``Last-Event-ID`` says, if it is there.

    Raises:
        InvalidRequest: it is no id of ours.
    """
    given = headers.get("Last-Event-ID")
    if not given:
        return None
    match = _EVENT_ID.fullmatch(given)
    if match is None:
        raise InvalidRequest(
            "a Last-Event-ID is <response id>:<number>, as in the stream", "Last-Event-ID", "invalid_value"
        )
    return Resume(id=match[1], received=int(match[2]))


@contextlib.asynccontextmanager
async def taken_up(engine: Engine, where: Resume, prefix: str) -> AsyncIterator[tuple[TakenUp, Identity]]:
    """The stream, and the identity of its response.

    Args:
        engine: where it runs.
        where: which, and from where on.
        prefix: what the ids of the route's responses begin with.

    Raises:
        HTTPError: 404, there is no such stream.
        InvalidRequest: it has not sent so much.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            if not where.id.startswith(prefix):
                raise StreamGone(where.id)
            taken = await stack.enter_async_context(engine.take_up(where.id))
        except StreamGone:
            why = "it was not resumable, or was left for too long"
            message = f"there is no stream '{where.id[:100]}' to take up: {why}"
            raise HTTPError(404, message, param="resume.id", code="stream_not_found") from None
        identity = taken.label
        assert isinstance(identity, Identity)
        # Its opening's events, its rows' events, the usage at its end.
        sent = identity.rows + taken.sent + 1
        if where.received > sent:
            raise InvalidRequest(
                f"'resume.received' is {where.received}; fewer events have been sent",
                "resume.received",
                "invalid_value",
            )
        yield taken, identity


@attrs.define
class Numbered:
    """Writes an answer's events with their ids, but for those that the client has.

    Args:
        answer: how they are written.
        received: how many the client has.
    """

    _answer: Answer
    _received: int = 0
    _count: int = 0

    def opening(self) -> str:
        """What a stream begins with: it sends the headers at once."""
        return self._numbered(self._answer.roles()) or ": taken up\n\n"

    def event(self, event: Event) -> str:
        """An event of a row."""
        return self._numbered(self._answer.event(event))

    def closing(self) -> str:
        """What a stream ends with. The last, ``[DONE]``, is no event of the response and always comes."""
        usage, done = self._answer.usage(), "data: [DONE]\n\n"
        return self._numbered(usage) + done

    def _numbered(self, events: str) -> str:
        written = []
        for event in events.split("\n\n")[:-1]:  # within one there is no empty line
            self._count += 1
            if self._count > self._received:
                written.append(f"id: {self._answer.identity.id}:{self._count}\n{event}\n\n")
        return "".join(written)
