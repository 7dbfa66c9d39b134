"""From what a caller says of a text's form to the grammar that its row is held to.

Run in a worker thread before Submit: to compile a grammar can take seconds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from motet.actors.intake import InvalidRequest
from motet.actors.request import Request
from motet.engine.constraints.constraint import Grammars
from motet.engine.constraints.grammar import GrammarError, Marker, after, either
from motet.engine.constraints.tools import (
    Tool,
    ToolFormat,
    free_calls,
    is_written,
    loosened,
    tool_calls,
    tool_format,
)

_LONGEST = 1 << 18  # characters


def checked_grammar(grammars: Grammars, tokenizer: Any, request: Request, *, thinks: bool) -> str:
    """The grammar of a row, known to ``grammars`` by the time that it begins.

    Args:
        grammars: those of the model's tokenizer.
        tokenizer: mlx-lm's TokenizerWrapper.
        request: with a grammar, or with calls that must be made. With a grammar and tools the reply is
            what the grammar says, or calls.
        thinks: whether the reply begins by thinking, to which no grammar applies.

    Raises:
        InvalidRequest: it cannot be honoured, with llguidance's reason.
    """
    param = "tool_choice" if request.must_call else request.grammar_param

    def checked(grammar: str) -> str:
        if thinks:
            grammar = after(_think_end(tokenizer), grammar)
        grammars.check(grammar)
        return grammar

    try:
        if request.must_call:
            name = request.must_call if isinstance(request.must_call, str) else None
            several = request.parallel_tool_calls
            calls = tool_calls(request.tools, tool_format(tokenizer), name=name, several=several)
            return checked(_sized(calls))
        assert request.grammar is not None
        if request.tools:
            return _text_or_calls(_sized(request.grammar), tokenizer, request, checked)
        return checked(_sized(request.grammar))
    except GrammarError as error:
        raise InvalidRequest(f"'{param}' cannot be honoured: {error}", param, "invalid_grammar") from error


def _sized(grammar: str) -> str:
    if len(grammar) > _LONGEST:
        raise GrammarError(f"it has {len(grammar)} characters, of {_LONGEST} that are allowed")
    return grammar


def _text_or_calls(text: str, tokenizer: Any, request: Request, checked: Callable[[str], str]) -> str:
    """The grammar of a reply that may call or answer.

    Nobody has asked that arguments be held to their schemas here: one that cannot be honoured is no reason
    to refuse the request.
    """
    form, several = tool_format(tokenizer), request.parallel_tool_calls
    if not is_written(form):
        free = free_calls(form, tokenizer.eos_token_ids, several=several)
        return checked(text if free is None else either(text, free))

    def with_calls(tools: Sequence[Tool]) -> str:
        return checked(either(text, _sized(tool_calls(tools, form, several=several))))

    try:
        return with_calls(request.tools)
    except GrammarError:
        checked(text)  # if the fault is in there, that is to be told
        tools = [tool if _is_honoured(tool, form, checked) else loosened(tool) for tool in request.tools]
        # Of tools that are honoured one by one, all are too much together.
        return with_calls(tools if tools != list(request.tools) else [*map(loosened, tools)])


def _is_honoured(tool: Tool, form: ToolFormat, checked: Callable[[str], str]) -> bool:
    try:
        checked(_sized(tool_calls([tool], form)))
    except GrammarError:
        return False
    return True


def _think_end(tokenizer: Any) -> Marker:
    tokens = tokenizer.think_end_tokens
    return Marker(tokenizer.think_end, tokens[0] if len(tokens) == 1 else None)
