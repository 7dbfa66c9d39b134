"""From what a caller says of a text's form to the grammar that its row is held to.

Run in a worker thread before Submit: to compile a grammar can take seconds.
"""

from typing import Any

from motet.actors.intake import InvalidRequest
from motet.actors.request import Request
from motet.engine.constraints.constraint import Grammars
from motet.engine.constraints.grammar import GrammarError, Marker, after
from motet.engine.constraints.tools import tool_calls, tool_format

_LONGEST = 1 << 18  # characters


def checked_grammar(grammars: Grammars, tokenizer: Any, request: Request, *, thinks: bool) -> str:
    """The grammar of a row, known to ``grammars`` by the time that it begins.

    Args:
        grammars: those of the model's tokenizer.
        tokenizer: mlx-lm's TokenizerWrapper.
        request: with a grammar, or with calls that must be made.
        thinks: whether the reply begins by thinking, to which no grammar applies.

    Raises:
        InvalidRequest: it cannot be honoured, with llguidance's reason.
    """
    param = "tool_choice" if request.must_call else request.grammar_param
    try:
        grammar = _calls(tokenizer, request) if request.must_call else request.grammar
        assert grammar is not None
        if len(grammar) > _LONGEST:
            raise GrammarError(f"it has {len(grammar)} characters, of {_LONGEST} that are allowed")
        if thinks:
            grammar = after(_think_end(tokenizer), grammar)
        grammars.check(grammar)
    except GrammarError as error:
        raise InvalidRequest(f"'{param}' cannot be honoured: {error}", param, "invalid_grammar") from error
    return grammar


def _calls(tokenizer: Any, request: Request) -> str:
    name = request.must_call if isinstance(request.must_call, str) else None
    form = tool_format(tokenizer)
    return tool_calls(request.tools, form, name=name, several=request.parallel_tool_calls)


def _think_end(tokenizer: Any) -> Marker:
    tokens = tokenizer.think_end_tokens
    return Marker(tokenizer.think_end, tokens[0] if len(tokens) == 1 else None)
