"""From what a caller writes to a row's tokens: chat template, tokenizer, context limit.

Pure functions over the tokenizer, run in worker threads before Submit, so that a large body never holds
up a stream. No MLX here.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

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


@attrs.frozen(slots=False)  # for the cached property
class Intake:
    """Turns prompts into tokens for one model.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
        vocabulary: token ids are below this.
        context: most tokens of a row, or None.
    """

    tokenizer: Any
    vocabulary: int
    context: int | None

    def tokens(self, prompt: Prompt, param: str) -> tuple[int, ...]:
        """The tokens of a prompt.

        Args:
            prompt: text, token ids or messages.
            param: the field that it came in, for errors.

        Raises:
            InvalidRequest: it is empty, malformed, or too long for the context.
        """
        self._refuse_hopeless(prompt, param)
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif not prompt:
            tokens = []
        elif isinstance(prompt[0], Mapping):
            tokens = self._chat(prompt, param)
        else:
            tokens = self._checked_ids(prompt, param)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param, "empty_prompt")
        if self.context is not None and len(tokens) >= self.context:
            raise self._too_long(f"{len(tokens)} tokens", param)
        return tuple(tokens)

    def _chat(self, messages: Any, param: str) -> list[int]:
        if not self.tokenizer.has_chat_template:
            raise InvalidRequest("this model has no chat template: use /v1/completions", param)
        try:
            tokens = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True
            )
        except Exception as error:  # templates raise what they like
            raise InvalidRequest(f"the model's chat template refused: {error}", param) from error
        return list(tokens)

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
    def _longest_token(self) -> int:
        return max(map(len, self.tokenizer.get_vocab()))

    def _too_long(self, size: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"the prompt has {size}; the model's context is {self.context} tokens, and at least one "
            "must be left for the completion",
            param,
            "context_length_exceeded",
        )
