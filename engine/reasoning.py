"""How a model marks what is thinking, what is answer and what is a tool call in its text.

The facts are mlx-lm's, found in the tokenizer; what is done with them is Output's matter.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from mlx_lm.tool_parsers import json_tools

from motet.engine.text import Search, Strings, special_tokens
from motet.engine.toolcalls import Form

NORMAL, REASONING, TOOL = "normal", "reasoning", "tool"
TOOL_IN_REASONING = "tool in reasoning"
"""Some models call from within their thinking; others only speak of the marker there. See Output."""

_HEADER = 16  # tokens: a reply's header has no more behind the marker that opens its thinking


@attrs.frozen
class Markers:
    """Where each marker leads, by the part that it stands in: part -> marker -> part.

    Built as mlx-lm's ``make_text_state_machine`` builds its transitions. Not by it: what proves to be no call
    is to be told as the model wrote it, and that machine does not say which marker it took away.
    """

    edges: Mapping[str, Mapping[str, str]]
    _strings: dict[str, Strings] = attrs.field(init=False)

    @_strings.default
    def _searchable(self) -> dict[str, Strings]:
        return {part: Strings(edges) for part, edges in self.edges.items()}

    @property
    def none(self) -> bool:
        """Whether text is only text."""
        return not any(self.edges.values())

    def search(self, part: str) -> Search:
        """A search for the markers that end a part."""
        return self._strings[part].search() if part in self._strings else Search(None)


@attrs.frozen(slots=False)  # for the cached properties
class Markup:
    """What there is to know of a tokenizer's markers. One a model; see Output.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
    """

    tokenizer: Any

    @functools.cached_property
    def special(self) -> Mapping[int, str]:
        """Special tokens by id, with their text."""
        return special_tokens(self.tokenizer)

    @functools.cached_property
    def form(self) -> Form:
        """How the model writes calls. Of one that was taught no form, the most common is expected."""
        tokenizer = self.tokenizer
        if tokenizer.has_tool_calling:
            return Form(tokenizer.tool_call_start, tokenizer.tool_call_end, tokenizer.tool_parser)
        return Form(json_tools.tool_call_start, json_tools.tool_call_end, json_tools.parse_tool_call)

    @functools.cached_property
    def with_tools(self) -> Markers:
        """The markers of a reply that may call tools."""
        return Markers(_edges(self.tokenizer, self.form))

    @functools.cached_property
    def without_tools(self) -> Markers:
        """The markers of a reply to which no tools are offered: those of calls are plain text."""
        return Markers(_edges(self.tokenizer, None))

    def begins(self, prompt: Sequence[int]) -> str:
        """The part that a chat's reply begins in.

        Thinking, if the prompt's end opens it: what the template did decides, not what the vocabulary allows.
        mlx-lm's server looks for the last marker in the whole prompt, where a user may have written one.
        """
        tokenizer = self.tokenizer
        if tokenizer.response_initial_state:
            return str(tokenizer.response_initial_state)
        if not tokenizer.has_thinking:
            return NORMAL
        marker = len(tokenizer.think_start_tokens)
        tail = list(prompt[-(_HEADER + marker) :])
        start = tokenizer.rfind_think_start(tail)
        opens = start >= 0 and not tokenizer.decode(tail[start + marker :]).strip()
        return REASONING if opens else NORMAL


def _edges(tokenizer: Any, form: Form | None) -> dict[str, dict[str, str]]:
    edges: dict[str, dict[str, str]] = {NORMAL: {}, REASONING: {}, TOOL: {}}
    if tokenizer.has_thinking:
        edges[NORMAL][tokenizer.think_start] = REASONING
        edges[REASONING][tokenizer.think_end] = NORMAL
    if form is not None:
        # A response format that leads to calls decides where they begin.
        if not any(to == TOOL for told in tokenizer.response_transitions.values() for _, to in told):
            edges[NORMAL][form.start] = TOOL
        if form.end:  # Mistral's calls last until the end
            edges[TOOL][form.end] = NORMAL
        if tokenizer.has_thinking:
            edges[REASONING][form.start] = TOOL_IN_REASONING
            edges[TOOL_IN_REASONING] = {tokenizer.think_end: NORMAL, **edges[TOOL]}
    for marker in tokenizer.structural_markers:
        edges[NORMAL][marker] = NORMAL
    for part, told in tokenizer.response_transitions.items():
        edges.setdefault(part, {}).update({marker: to for marker, to in told if form or to != TOOL})
    return edges
