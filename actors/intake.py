"""From what a caller writes to a row's tokens: chat template, tokenizer, context limit.

Pure functions over the tokenizer, run in worker threads before Submit, so that a large body never holds
up a stream. No MLX here.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from motet.actors.prefixes import common_prefix
from motet.actors.untaught import template_takes_tools, told_of_tools

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text to continue, token ids to continue, or a chat's messages."""


class InvalidRequest(Exception):
    """The request cannot be served as it stands.

    ``param`` names the field at fault, ``code`` the fault for machines.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


_LONG = 256
"""Tokens from which a prompt leaves a snapshot of what others are likely to share."""

_TURN = 64
"""Tokens from which a chat leaves one where its next turn may go on: fewer cost hardly more than a forward to
read again, and a recurrent state is as large for one token as for thousands."""


@attrs.frozen
class Tokens:
    """A prompt, tokenized."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...]
    """Lengths of prefixes that others are likely to share, ascending; see Work."""


def is_chat(prompt: Prompt) -> bool:
    """Whether a prompt is a chat's messages."""
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)


def _is_system(message: Message) -> bool:
    return message.get("role") in {"system", "developer"}


_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What the chat template's renderer takes that no request sets."""


@attrs.frozen
class _Chat:
    """A chat, as its template is given it."""

    tokenizer: Any
    messages: list[dict[str, Any]]
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        messages: Any,
        param: str,
        tools: Sequence[Mapping[str, Any]],
        template: Mapping[str, Any],
        taught: bool,
    ) -> "_Chat":
        """Check a request's chat. ``taught`` is whether the template takes tools.

        Raises:
            InvalidRequest: it is none, or the model takes none.
        """
        for name in template:
            if name in _OURS:
                raise InvalidRequest(f"the chat template's '{name}' cannot be set", "chat_template_kwargs")
        if not tokenizer.has_chat_template:
            raise InvalidRequest("this model has no chat template: use /v1/completions", param)
        written = [_written(m, f"{param}[{i}]", param) for i, m in enumerate(messages)]
        if not taught:
            return cls(tokenizer, told_of_tools(written, tools), template)
        options = {**template, "tools": [dict(tool) for tool in tools]} if tools else template
        return cls(tokenizer, written, options)

    def tokens(self, param: str) -> list[int]:
        """What the model is to read.

        Raises:
            InvalidRequest: the template refused.
        """
        try:
            return self._render(self.messages)
        except Exception as error:  # templates raise what they like
            raise InvalidRequest(f"the model's chat template refused: {error}", param) from error

    def system_end(self, tokens: tuple[int, ...]) -> int:
        """Tokens until the first message that is not the system's: what a whole fleet of agents shares."""
        system = list(itertools.takewhile(_is_system, self.messages))
        rest = self.messages[len(system) :]
        # Offered tools are shared as a system prompt is, and stand with it.
        if not (system or self.options.get("tools")) or not rest:
            return 0
        # Another first turn in its place: what stays the same does not come from it. Asked for through
        # the template, for some put the system prompt into the user's turn.
        other = "0" if not str(rest[0].get("content")).startswith("0") else "1"
        return self._same([*system, {"role": "user", "content": other}], tokens)

    def turns(self, tokens: tuple[int, ...]) -> set[int]:
        """Where the next turns of this chat go on if the reply will be written otherwise than it was made.

        Templates for thinking models drop the thoughts of a reply when the user has spoken again, and a
        reply's text may be cut into other tokens than it was made of. What stands before the first reply
        to the last user is written alike then; and while tools answer, what stands before this reply.
        """
        last = max((i for i, m in enumerate(self.messages) if m.get("role") == "user"), default=None)
        found = set() if last is None else {self._before_reply(self.messages[: last + 1], tokens)}
        if last is None or last + 1 < len(self.messages):
            found.add(self._same(self.messages, tokens, add_generation_prompt=False))
        return {min(length, len(tokens) - 1) for length in found}

    def _before_reply(self, messages: list[dict[str, Any]], tokens: tuple[int, ...]) -> int:
        """Tokens until the reply to these, its header included, as far as every reply has them."""
        # A line's end, for a template that leaves it may have it join the header's.
        reply = {"role": "assistant", "content": "\n0"}
        return self._same(
            [*messages, reply, {"role": "user", "content": "0"}], tokens, add_generation_prompt=False
        ) or self._same(messages, tokens, add_generation_prompt=False)

    def _same(self, messages: Any, tokens: tuple[int, ...], **options: Any) -> int:
        try:
            rendered = self._render(messages, **options)
        except Exception:  # a template may refuse a chat that ends like this
            return 0
        return common_prefix(tuple(rendered), tokens)

    def _render(self, messages: Any, *, add_generation_prompt: bool = True) -> list[int]:
        chat = [dict(message) for message in messages]
        return list(
            self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=add_generation_prompt, **self.options
            )
        )


def _written(message: Any, name: str, param: str) -> dict[str, Any]:
    """A message as templates take it: text, and a call's arguments as an object.

    As mlx-lm's server does it; not by its function, which changes its argument in place and does not say
    which field is wrong.
    """
    if not isinstance(message, Mapping):
        raise InvalidRequest("a chat's messages must be objects", param)
    written = dict(message)
    if written.get("content") is None:
        written["content"] = ""
    if calls := written.get("tool_calls"):
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise InvalidRequest(f"'{name}.tool_calls' must be a list", f"{name}.tool_calls", "invalid_value")
        written["tool_calls"] = [_call(call, f"{name}.tool_calls[{i}]") for i, call in enumerate(calls)]
    else:
        written.pop("tool_calls", None)
    return written


def _call(call: Any, name: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"'{name}' must be a call of a function", name, "invalid_value")
    arguments = function.get("arguments") or "{}"
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping):
        field = f"{name}.function.arguments"
        raise InvalidRequest(f"'{field}' must be a JSON object, as a string", field, "invalid_value")
    return {**call, "function": {**function, "arguments": value}}


@attrs.frozen(slots=False)  # for the cached property
class Intake:
    """Turns prompts into tokens for one model.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
        vocabulary: token ids are below this.
        context: most tokens of a row, or None.
        cuts: whether a snapshot of a prompt serves every shorter prefix of it.
    """

    tokenizer: Any
    vocabulary: int
    context: int | None
    cuts: bool

    def read(
        self,
        prompt: Prompt,
        param: str,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        """The tokens of a prompt, and where in it snapshots are worth taking.

        Args:
            prompt: text, token ids or messages.
            param: the field that it came in, for errors.
            tools: what the chat's template is to offer.
            template: more values for the chat's template.

        Raises:
            InvalidRequest: it is empty, malformed, or too long for the context.
        """
        self._refuse_hopeless(prompt, param)
        chat = None
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif not prompt:
            tokens = []
        elif is_chat(prompt):
            chat = _Chat.of(self.tokenizer, prompt, param, tools, template, self._taught)
            tokens = chat.tokens(param)
        else:
            tokens = self._checked_ids(prompt, param)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param, "empty_prompt")
        if self.context is not None and len(tokens) >= self.context:
            raise self._too_long(f"{len(tokens)} tokens", param)
        return Tokens(tuple(tokens), self._boundaries(chat, tuple(tokens)))

    def _boundaries(self, chat: "_Chat | None", tokens: tuple[int, ...]) -> tuple[int, ...]:
        found = set()
        if chat is None and not self.cuts and len(tokens) >= _LONG:
            found.add(len(tokens) - 1)
        if chat is not None and len(tokens) >= _LONG:
            found.add(chat.system_end(tokens))
        if chat is not None and not self.cuts and len(tokens) >= _TURN:
            found |= chat.turns(tokens)
        return tuple(sorted(length for length in found if 0 < length < len(tokens)))

    def text(self, tokens: Sequence[int], param: str) -> str:
        """The text of token ids, with that of special tokens.

        Raises:
            InvalidRequest: one is outside the vocabulary.
        """
        return str(self.tokenizer.decode(self._checked_ids(tokens, param)))

    def _checked_ids(self, ids: Any, param: str) -> list[int]:
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool):
                raise InvalidRequest("a prompt of tokens must be integers", param)
            if not 0 <= token < self.vocabulary:
                raise InvalidRequest(f"token {token} is outside the vocabulary of {self.vocabulary}", param)
        return list(ids)

    def _refuse_hopeless(self, prompt: Prompt, param: str) -> None:
        """Refuse text that cannot fit the context before any time goes into tokenizing it."""
        if self.context is None:
            return
        if isinstance(prompt, str):
            size = len(prompt)
        else:
            contents = [m.get("content") for m in prompt if isinstance(m, Mapping)]
            size = sum(len(content) for content in contents if isinstance(content, str))
        if size > self.context * self._longest_token:
            raise self._too_long(f"{size} characters", param)

    @functools.cached_property
    def _taught(self) -> bool:
        return template_takes_tools(self.tokenizer)

    @functools.cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.tokenizer.get_vocab()))

    def _too_long(self, size: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"the prompt has {size}; the model's context is {self.context} tokens, and at least one "
            "must be left for the completion",
            param,
            "context_length_exceeded",
        )
