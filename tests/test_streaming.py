"""Server-sent events as they are written."""

import json

import pytest

from motet import Finished, Reasoning, Text, ToolCall, Usage
from motet.http.completions import CHAT, TEXT, Answer, Identity
from motet.http.messages_answer import MessagesAnswer
from motet.http.responses_answer import ResponsesAnswer
from motet.http.responses_request import ResponsesRequest
from motet.http.schema import parse
from motet.http.streaming import Writer

ENDS = "".join(chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1)
SAID = f"é{ENDS}ü"


def writers() -> list[Writer]:
    asked = parse(ResponsesRequest, b'{"model": "m", "input": "x"}')
    answers = [Answer(Identity.new(kind, 1, 1, False), "m") for kind in (CHAT, TEXT)]
    return [*answers, MessagesAnswer("m"), ResponsesAnswer("m", asked)]


@pytest.mark.parametrize("writer", writers(), ids=lambda writer: type(writer).__name__)
def test_no_text_ends_a_line_for_any_client(writer: Writer) -> None:
    """httpx's iter_lines, and so many clients, splits lines as str.splitlines does."""
    events = [Text(0, SAID, 1), Finished(0, "stop", Usage(1, 1, 0))]
    if not (isinstance(writer, Answer) and writer.identity.kind is TEXT):
        events[:0] = [Reasoning(0, SAID, 1), ToolCall(0, 0, json.dumps(SAID, ensure_ascii=False), "c", "f")]
    told = "".join(map(writer.event, events))
    assert told.splitlines() == told.split("\n")[:-1]
    said = [line.removeprefix("data: ") for line in told.splitlines() if line.startswith("data: {")]
    assert len(ENDS) == 10 and any(json.dumps(SAID) in json.dumps(json.loads(data)) for data in said)
