"""Grammars of tool calls, as models write them: for tool_choice 'required' and a named function, and for
replies that are calls or else a text of some form.

A format is told by mlx-lm's parser of it, for what is forced here must be what is read there. JSON between
markers holds each call to its function's schema. In formats that mark up each argument by itself, arguments
come in the schema's order, and each that is a string or of no one type is free up to its closing mark.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
from mlx_lm.tool_parsers import json_tools

from motet.engine.constraints.grammar import JSON_OPTIONS, GrammarError, Marker

Tool = Mapping[str, Any]
"""A tool in OpenAI's form: {"type": "function", "function": {"name": ..., "parameters": ...}}."""


@attrs.frozen
class ToolFormat:
    """How a model writes its calls: the parser's name, and the markers."""

    parser: str
    start: Marker
    end: Marker


def tool_format(tokenizer: Any) -> ToolFormat:
    """The format of a tokenizer's model, by the parser that mlx-lm has found for it.

    Of one that was taught none, the format that it is told of (actors/untaught.py).
    """
    parser = tokenizer.tool_parser
    start, end = tokenizer.tool_call_start or "", tokenizer.tool_call_end or ""
    if parser is None:
        parser = json_tools.parse_tool_call
        start, end = json_tools.tool_call_start, json_tools.tool_call_end
    vocabulary = tokenizer.get_vocab()
    return ToolFormat(
        parser.__module__.rpartition(".")[2],
        Marker(start, vocabulary.get(start)),
        Marker(end, vocabulary.get(end)),
    )


def tool_calls(
    tools: Sequence[Tool], form: ToolFormat, *, name: str | None = None, several: bool = True
) -> str:
    """The grammar of a reply that is nothing but calls.

    Args:
        tools: what may be called.
        form: how the model writes it.
        name: the one function that must be called, once; None for any.
        several: whether more than one call may follow.

    Raises:
        GrammarError: there is no such function, or the format cannot be forced.
    """
    functions = [tool["function"] for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
    if not functions:
        raise GrammarError(f"there is no function '{name}' among the tools" if name else "there are no tools")
    if not is_written(form):
        raise GrammarError(f"calls in this model's format ({form.parser}) cannot be forced")
    more = several and name is None
    return "\n".join(["%llguidance {}", *_WRITTEN[form.parser](functions, form, more)])


def is_written(form: ToolFormat) -> bool:
    """Whether calls in a format can be held to their functions."""
    return form.parser in _WRITTEN


def free_calls(form: ToolFormat, stops: Collection[int], *, several: bool) -> str | None:
    """Calls with anything between their markers: for a format that is not written here.

    None if its markers are not tokens of their own, for text cannot be told from them then.

    Args:
        form: how the model writes them.
        stops: tokens that end a reply, which no call may contain.
        several: whether more than one call may follow.
    """
    start, end = form.start.token, form.end.token
    if start is None or end is None or start == end:
        return None
    # By tokens, not by their text: such formats have special tokens within a call.
    others = ",".join(map(str, sorted({end, *stops})))
    rest = r' ("\n"? marked)*' if several else ""
    return f"start: marked{rest}\nmarked: {form.start} <[^{others}]>* {form.end}"


def loosened(tool: Tool) -> Tool:
    """A tool whose arguments keep their names and nothing else of their schema."""
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties, required = parameters.get("properties"), parameters.get("required")
    loose: dict[str, Any] = {"type": "object"}
    if isinstance(properties, Mapping):
        loose["properties"] = {name: {} for name in properties}
        if isinstance(required, (list, tuple)):
            loose["required"] = [name for name in required if name in loose["properties"]]
    return {**tool, "function": {**function, "parameters": loose}}


def _schema(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters") or {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    return json.dumps({**parameters, "x-guidance": JSON_OPTIONS})


def _named(functions: Sequence[Mapping[str, Any]], body: Callable[[str, str], str]) -> list[str]:
    """The rule ``call``: any of the functions, each with its arguments' rule."""
    rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(functions)))]
    for i, function in enumerate(functions):
        rules.append(f"call_{i}: {body(function['name'], f'arguments_{i}')}")
        rules.append(f"arguments_{i}: %json {_schema(function)}")
    return rules


def _object(name: str, arguments: str) -> str:
    opening = '{"name": ' + json.dumps(name) + ', "arguments": '
    return f'{json.dumps(opening)} {arguments} "}}"'


def _json_in_markers(functions: Sequence[Mapping[str, Any]], form: ToolFormat, several: bool) -> list[str]:
    """<tool_call>, a JSON object, </tool_call>, each on a line of its own."""
    marked = rf'{form.start} "\n" call "\n" {form.end}'
    rest = r' ("\n" marked)*' if several else ""
    return [f"start: marked{rest}", f"marked: {marked}", *_named(functions, _object)]


def _mistral(functions: Sequence[Mapping[str, Any]], form: ToolFormat, several: bool) -> list[str]:
    """[TOOL_CALLS] and a JSON list."""
    rest = ' (", " call)*' if several else ""
    return [f'start: {form.start} "[" call{rest} "]"', *_named(functions, _object)]


def _kimi_k2(functions: Sequence[Mapping[str, Any]], form: ToolFormat, several: bool) -> list[str]:
    """A section of calls, each with its name and number before its JSON arguments."""

    def body(name: str, arguments: str) -> str:
        opening = json.dumps(f"functions.{name}:")
        return (
            f"<|tool_call_begin|> {opening} NUMBER <|tool_call_argument_begin|> {arguments} <|tool_call_end|>"
        )

    calls = "call+" if several else "call"
    return [f"start: {form.start} {calls} {form.end}", "NUMBER: /[0-9]{1,3}/", *_named(functions, body)]


@attrs.frozen
class _Markup:
    """How a format marks up one call and each of its arguments; braces stand for a name."""

    opening: str
    closing: str
    key: str
    end: str

    def __call__(self, functions: Sequence[Mapping[str, Any]], form: ToolFormat, several: bool) -> list[str]:
        rest = r' ("\n" marked)*' if several else ""
        calls = " | ".join(f"call_{i}" for i in range(len(functions)))
        rules = [f"start: marked{rest}", f"marked: {form.start} ( {calls} ) {form.end}"]
        for i, function in enumerate(functions):
            rules += self._call(f"call_{i}", function)
        return rules

    def _call(self, rule: str, function: Mapping[str, Any]) -> list[str]:
        parameters = function.get("parameters") or {}
        required = parameters.get("required") or []
        properties = parameters.get("properties") or {}
        if not (isinstance(required, (list, tuple)) and isinstance(properties, Mapping)):
            raise GrammarError(f"the parameters of '{function['name']}' are no schema")
        names = list(properties)
        arguments = [f"{rule}_{j}" + ("" if name in required else "?") for j, name in enumerate(names)]
        text = [json.dumps(self.opening.format(function["name"])), *arguments, json.dumps(self.closing)]
        rules = [f"{rule}: {' '.join(text)}"]
        for j, name in enumerate(names):
            rules += self._argument(f"{rule}_{j}", name, parameters)
        return rules

    def _argument(self, rule: str, name: str, parameters: Mapping[str, Any]) -> list[str]:
        schema = parameters["properties"][name]
        key, end = json.dumps(self.key.format(name)), json.dumps(self.end)
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        if kind in ("integer", "number", "boolean", "object", "array"):
            shared = {word: parameters[word] for word in ("$defs", "definitions") if word in parameters}
            whole = json.dumps({**shared, **schema, "x-guidance": JSON_OPTIONS})
            return [f"{rule}: {key} {rule}_value {end}", f"{rule}_value: %json {whole}"]
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        if choices and all(isinstance(choice, str) for choice in choices):
            return [f"{rule}: {key} ( {' | '.join(map(json.dumps, choices))} ) {end}"]
        return [f"{rule}: {key} {rule}_text", f"{rule}_text[suffix={end}]: /(.|\\n)*/"]


_WRITTEN: dict[str, Callable[[Sequence[Mapping[str, Any]], ToolFormat, bool], list[str]]] = {
    "json_tools": _json_in_markers,
    "longcat": _json_in_markers,
    "mistral": _mistral,
    "kimi_k2": _kimi_k2,
    "qwen3_coder": _Markup("\n<function={}>\n", "</function>\n", "<parameter={}>\n", "\n</parameter>\n"),
    "minimax_m2": _Markup('\n<invoke name="{}">\n', "</invoke>\n", '<parameter name="{}">', "</parameter>\n"),
    "glm47": _Markup("{}\n", "", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n"),
}
