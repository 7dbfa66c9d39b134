"""The bodies of POST /tokenize and /detokenize."""

from typing import Annotated

from pydantic import Field

from motet import InvalidRequest, Request
from motet.http.chat_request import Message, Object, Tool, told_tool, written
from motet.http.generation import NonEmpty
from motet.http.schema import Body


class TokenizeRequest(Body):
    """One of ``prompt`` and ``messages``: text as /v1/completions reads it, or a chat as the model does."""

    model: str | None = None
    prompt: NonEmpty | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: Object | None = None

    def request(self) -> Request:
        """What would be generated from it.

        Raises:
            InvalidRequest: it has both or neither.
        """
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest(
                "one of 'prompt' and 'messages' is required", "prompt", "missing_required_parameter"
            )
        if self.prompt is not None:
            return Request(self.prompt, param="prompt")
        messages = [written(message) for message in self.messages or ()]
        template = self.chat_template_kwargs or {}
        return Request(
            messages, tools=tuple(map(told_tool, self.tools or ())), template=template, param="messages"
        )


class TokenizeAnswer(Body):
    tokens: list[int]
    count: int
    max_model_len: int | None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]


class DetokenizeAnswer(Body):
    prompt: str
    """The text, with that of special tokens."""
