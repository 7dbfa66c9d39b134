"""A model's tool calls: read by mlx-lm's parsers, or told as they grow where their form allows.

A parser raises what it likes on text that is no call, and some invent one. So whatever it says is checked,
and what does not pass is text again.
"""

import functools
import json
import re
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from motet.engine.jsontext import GrowingObject

Parser = Callable[[str, Any], Any]

# Some try the text as Python source. Not by ``catch_warnings``: they run on several threads.
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module="<unknown>")


class Malformed(Exception):
    """The text is no call of a tool that was offered."""


@attrs.frozen
class Call:
    """A call, or more of one: its arguments' text. The first has an id and a name."""

    arguments: str
    id: str = ""
    name: str = ""


@attrs.frozen
class Shape:
    """A form of calls with their arguments as one JSON object behind the name.

    ``head`` matches up to that object, ``tail`` is what closes the call behind it.
    """

    head: re.Pattern[str]
    tail: str


def _shape(head: str, tail: str = "") -> Shape:
    return Shape(re.compile(rf"\s*(?:{re.escape(tail)})?[\s,]*{head}\s*(?={{)"), tail)


_CALL = "<|close|>json<|sep|><|close|>call<|sep|>"
# Each with a call of it. The parser itself is asked whether it reads the form so.
_SHAPES = (
    (
        _shape(r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"arguments"\s*:', "}"),
        '{"name": "f", "arguments": %s}',
    ),
    (_shape(r"(?P<name>[\w-]+)\s*\[ARGS\]"), "f[ARGS]%s"),
    (
        _shape(
            r"(?:<\|tool_call_begin\|>)?\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+?):\d+)\s*"
            r"<\|tool_call_argument_begin\|>",
            "<|tool_call_end|>",
        ),
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
    ),
    (
        _shape(r'<\|open\|>call tool="(?P<name>[^"&]+)"[^<]*<\|sep\|>\s*<\|open\|>json[^<]*<\|sep\|>', _CALL),
        '<|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>%s' + _CALL,
    ),
)
_ASKED = '{"a": "1", "b": {"c": [null]}}'  # a parser that converts by the tool's schema alters the "1"


@functools.cache
def _shapes_of(parser: Parser) -> tuple[Shape, ...]:
    return tuple(shape for shape, sample in _SHAPES if _reads(parser, sample % _ASKED))


def _reads(parser: Parser, sample: str) -> bool:
    try:
        parsed = _parsed(parser, sample, None)
    except Malformed:
        return False
    arguments = json.loads(_ASKED)
    return [(call.get("name"), call.get("arguments")) for call in parsed] == [("f", arguments)]


@attrs.frozen
class Form:
    """How a model writes calls: between two markers (the last may be empty), as its parser reads them."""

    start: str
    end: str
    parser: Parser
    shapes: tuple[Shape, ...] = attrs.field(init=False)
    """The forms of calls whose arguments can be told as they grow."""

    @shapes.default
    def _shapes(self) -> tuple[Shape, ...]:
        return _shapes_of(self.parser)


@attrs.frozen
class Tools:
    """The tools that a request offers, in OpenAI's form, and how the model writes their calls."""

    form: Form
    offered: Sequence[Mapping[str, Any]]
    schemas: Mapping[str, Any] = attrs.field(init=False)

    @schemas.default
    def _by_name(self) -> dict[str, Any]:
        functions = [tool.get("function") or {} for tool in self.offered]
        return {str(function.get("name")): function.get("parameters") for function in functions}

    def parse(self, text: str) -> list[Call]:
        """The calls that a text holds, whole.

        Raises:
            Malformed: it holds none, or one that is not right.
        """
        parsed = _parsed(self.form.parser, text, list(self.offered))
        if not parsed:
            raise Malformed("no call")
        return [self._checked(call) for call in parsed]

    def _checked(self, call: Any) -> Call:
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str) or name not in self.schemas:
            raise Malformed(f"no tool {name!r} was offered")
        try:
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"the arguments are no JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise Malformed("the arguments are no object")
        if list(arguments) == ["raw"] and "raw" not in _properties(self.schemas[name]):
            raise Malformed("the arguments cannot be read")  # where glm47's parser puts what it cannot read
        told = call.get("id")  # some models' templates want their own ids back
        return Call(written, told if isinstance(told, str) and told else new_id(), name)


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def new_id() -> str:
    """A call's id, in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def _parsed(parser: Parser, text: str, tools: Any) -> list[dict[str, Any]]:
    try:
        parsed = parser(text, tools)
    except Exception as error:  # they raise what they like
        raise Malformed(f"{type(error).__name__}: {error}") from error
    calls = parsed if isinstance(parsed, list) else [parsed]
    if not all(isinstance(call, dict) for call in calls):
        raise Malformed("a call is no object")
    return calls


class Section:
    """What a model writes between the markers of its tool calls.

    Arguments are told as they grow if the section begins in one of the parser's growing shapes; else, and
    for what follows such a call in another form, the parser reads all of it at the end.
    """

    def __init__(self, tools: Tools, opening: str) -> None:
        self._tools = tools
        self._shape: Shape | None = None
        self._object: GrowingObject | None = None
        self._untold = ""  # text of which nothing is told yet
        self._opening = opening  # its marker, until a call is told
        self._why = ""
        self.told = False
        """Whether a call has been told, or the beginning of one."""
        self.whole = False
        """Whether a call has been told to its end."""

    @property
    def pending(self) -> int:
        """Letters that wait for its end, to be parsed."""
        return len(self._untold)

    @property
    def inside(self) -> bool:
        """Whether it is within a call's arguments, where no marker is one."""
        return self._object is not None

    def push(self, text: str) -> tuple[list[Call], str]:
        """More text: what can be told of calls, and what is behind arguments that were begun."""
        if self._object is not None:
            return self._argue(text)
        self._untold += text
        return self._begin(), ""

    def _begin(self) -> list[Call]:
        """Look for a call whose arguments begin."""
        for shape in [self._shape] if self._shape else self._tools.form.shapes:
            head = shape.head.match(self._untold)
            if self._why or head is None or head["name"] not in self._tools.schemas:
                continue
            self._shape, self._object = shape, GrowingObject()
            self._opening, self.told = "", True
            text, self._untold = self._untold[head.end() :], ""
            identity = head.groupdict().get("id") or new_id()
            calls, rest = self._argue(text)
            first = [Call("", identity, head["name"]), *calls]
            self._untold = rest
            return first + (self._begin() if rest else [])
        return []

    def _argue(self, text: str) -> tuple[list[Call], str]:
        assert self._object is not None
        arguments, rest = self._object.push(text)
        if self._object.state == "broken":
            self._why = "the arguments are no JSON"
        elif self._object.state == "done":
            self.whole = True
        if self._object.state != "open":
            self._object = None
        return ([Call(arguments)] if arguments else []), rest

    def end(self, *, whole: bool = True) -> list[Call]:
        """The calls that are told only now.

        Args:
            whole: false if the text was cut.

        Raises:
            Malformed: the rest is no call. ``left`` has its text.
        """
        if self._is_tail():
            return []
        if self.inside or self._why or not whole:
            raise Malformed(self._why or "the text was cut")
        calls = self._tools.parse(self._untold)
        self.told = self.whole = True
        return calls

    def left(self, closing: str) -> str:
        """What is not told as calls, as the model wrote it; ``closing`` is the marker that ended it."""
        return "" if self.inside else self._opening + self._untold + closing

    def _is_tail(self) -> bool:
        """Whether all that is left is what closes a call that is told."""
        tail = self._shape.tail if self._shape else ""
        return self.told and not self._why and tail.startswith("".join(self._untold.split()))
