"""What a caller asks a text to be, as llguidance's serialized grammars: plain strings.

They are only written here. Whether llguidance can honour one is found by ``Grammars.check``.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs
from llguidance import LLMatcher

# JSON as models mostly write it on one line. With free white space a small model at a high temperature can
# go on with line breaks for ever. ``lenient`` would ignore what cannot be honoured.
JSON_OPTIONS: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}
"""llguidance's options for JSON schemas."""


@attrs.frozen
class Marker:
    """A text that parts a reply: a token of its own in most vocabularies."""

    text: str
    token: int | None = None

    def __str__(self) -> str:
        """In Lark's notation."""
        return json.dumps(self.text) if self.token is None else f"<[{self.token}]>"


class GrammarError(ValueError):
    """A grammar that cannot be honoured; the text is llguidance's reason."""


def json_schema(schema: Mapping[str, Any] | bool) -> str:
    """JSON on one line that validates against a JSON schema.

    Raises:
        GrammarError: it is no JSON schema at all.
    """
    if schema is True:
        schema = {}
    elif schema is False:
        raise GrammarError("nothing matches the schema 'false'")
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
    except ValueError as error:
        raise GrammarError(str(error)) from error


def json_object() -> str:
    """Any JSON object, on one line."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    """Text that a regular expression (the syntax of Rust's regex crate, no look-around) matches whole."""
    return LLMatcher.grammar_from_regex(pattern)


def lark(definition: str) -> str:
    """Text of a grammar in llguidance's variant of Lark's notation, from its rule ``start``."""
    return LLMatcher.grammar_from_lark(definition)


def after(marker: Marker, grammar: str) -> str:
    """Anything until the first such marker, and then what a grammar says: a reply that begins by thinking."""
    if marker.token is None:
        free = f"free[suffix={json.dumps(marker.text)}]: /(.|\\n)*/"
    else:
        free = f"free: /(.|\\n)*/ {marker}"
    opening = f"start: free SPACE @answer\n{free}\nSPACE: /[ \\n]{{0,2}}/"
    return json.dumps({"grammars": [{"lark_grammar": opening}, *_named("answer", grammar)]})


def either(text: str, calls: str) -> str:
    """What one grammar says or what another does, whole."""
    # Not "answer": llguidance takes a name once, and ``after`` gives that one to this.
    parts = [*_named("text", text), *_named("calls", calls)]
    return json.dumps({"grammars": [{"lark_grammar": "start: @text | @calls"}, *parts]})


def _named(name: str, grammar: str) -> list[dict[str, Any]]:
    """A grammar's parts, the first of which another can refer to."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    return [{**parts[0], "name": name}, *parts[1:]]
