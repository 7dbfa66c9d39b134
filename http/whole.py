"""A response that is not streamed: its writer is told all events; what it would have streamed is dropped."""

from motet import Failed, Stream
from motet.http.errors import as_http_error, row_error
from motet.http.streaming import Writer


async def read_to_end(stream: Stream, answer: Writer) -> None:
    """Tell the answer every event.

    Raises:
        HTTPError: a row failed, or the engine.
    """
    try:
        async for event in stream:
            if isinstance(event, Failed):
                raise row_error(event.code, event.message)
            answer.event(event)
    except Exception as error:
        raise as_http_error(error) from error
