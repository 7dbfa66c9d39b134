"""What a caller asks a text to be, as llguidance's serialized grammars: plain strings.

They are only written here. Whether llguidance can honour one is found by ``Grammars.check``.
"""

import json
from collections.abc import Mapping
from typing import Any

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
