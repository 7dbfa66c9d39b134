"""OpenAI's completion objects: chat and text, whole and streamed.

https://platform.openai.com/docs/api-reference/chat/object and .../chat-streaming
"""

import secrets
import time
from typing import Any

import attrs

from motet import Event, Failed, Finished, Reasoning, Text, ToolCall, Usage
from motet.http.logprobs import ChatLogprobs, TextLogprobs
from motet.http.streaming import compact


@attrs.frozen
class Kind:
    """What differs between the two routes."""

    prefix: str
    object: str
    chunk: str
    chat: bool


CHAT = Kind("chatcmpl-", "chat.completion", "chat.completion.chunk", True)
TEXT = Kind("cmpl-", "text_completion", "text_completion", False)


@attrs.frozen
class Identity:
    """What stays the same of a response, also when its stream is taken up again."""

    kind: Kind
    prompts: int
    n: int
    """Choices of each prompt; the first prompt's come first."""
    include_usage: bool
    """Whether a stream ends with the usage."""
    id: str
    created: int

    @classmethod
    def new(cls, kind: Kind, prompts: int, n: int, include_usage: bool) -> "Identity":
        """One with an id of its own, that nobody can guess."""
        return cls(kind, prompts, n, include_usage, kind.prefix + secrets.token_hex(12), int(time.time()))

    @property
    def rows(self) -> int:
        """How many choices it has."""
        return self.prompts * self.n


class _Told:
    """What the events of one row have told."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self.logprobs: ChatLogprobs | TextLogprobs = ChatLogprobs() if chat else TextLogprobs()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []
        self.end: Finished | None = None

    def take(self, event: Event) -> None:
        """One more event."""
        match event:
            case Text(text=text):
                self._text.append(text)
            case Reasoning(text=text):
                self._reasoning.append(text)
            case ToolCall():
                if event.id:
                    self._calls.append((event.id, event.name))
                    self._arguments.append([])
                self._arguments[event.call].append(event.arguments)
            case Finished():
                self.end = event

    def choice(self, index: int) -> dict[str, Any]:
        """The row's choice."""
        said = {"message": self._message()} if self._chat else {"text": "".join(self._text)}
        reason = self.end and self.end.reason
        return {"index": index, **said, "logprobs": self.logprobs.whole, "finish_reason": reason}

    def _message(self) -> dict[str, Any]:
        text = "".join(self._text)
        content = None if self._calls and not text else text
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "annotations": [],
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for (id_, name), arguments in zip(self._calls, self._arguments, strict=True)
            ]
        return message


class Answer:
    """One response: how its events are written in its form."""

    def __init__(self, identity: Identity, model: str) -> None:
        self.identity = identity
        self._kind = identity.kind
        self._model = model
        self._told = [_Told(chat=identity.kind.chat) for _ in range(identity.rows)]

    # --- whole ---

    def whole(self) -> dict[str, Any]:
        """The object of a response that is not streamed: what its events have told."""
        ends = [row.end for row in self._told if row.end is not None]
        return {
            "id": self.identity.id,
            "object": self._kind.object,
            "created": self.identity.created,
            "model": self._model,
            "choices": [row.choice(index) for index, row in enumerate(self._told)],
            "usage": _usage([end.usage for end in ends], self.identity.n),
        }

    # --- streamed ---

    def opening(self) -> str:
        """What a stream begins with: it sends the headers at once. A chat's names its role."""
        return self.roles() if self._kind.chat else ": accepted\n\n"

    def roles(self) -> str:
        """An event for each row that says nothing yet, but whose it is."""
        said = '{"role":"assistant","content":""}' if self._kind.chat else '""'
        return "".join(self._chunk(index, said) for index in range(self.identity.rows))

    def event(self, event: Event) -> str:
        """An event of a row, as server-sent events."""
        self._told[event.index].take(event)
        match event:
            case Text(index, text):
                logprobs = self._told[index].logprobs.more(text, event.logprobs)
                return self._chunk(index, self._said(text), logprobs=logprobs)
            case Reasoning(index, text):
                return self._chunk(index, f'{{"reasoning_content":{compact(text)}}}')
            case ToolCall():
                return self._chunk(event.index, f'{{"tool_calls":[{compact(_call(event))}]}}')
            case Finished(index, reason):
                return self._chunk(index, "{}" if self._kind.chat else self._said(""), reason)
            case Failed(_, code, message):
                return error_event(code, message)

    def closing(self) -> str:
        """What a stream ends with."""
        return self.usage() + "data: [DONE]\n\n"

    def usage(self) -> str:
        """The event with the usage, if it was asked for and is known."""
        ends = [row.end for row in self._told if row.end is not None]
        if not self.identity.include_usage or len(ends) < self.identity.rows:
            return ""
        usage = compact(_usage([end.usage for end in ends], self.identity.n))
        return f'{self._head}[],"usage":{usage}}}\n\n'

    @property
    def _head(self) -> str:
        identity = self.identity
        return (
            f'data: {{"id":"{identity.id}","object":"{self._kind.chunk}","created":{identity.created},'
            f'"model":{compact(self._model)},"choices":'
        )

    def _said(self, text: str) -> str:
        quoted = compact(text)
        return f'{{"content":{quoted}}}' if self._kind.chat else quoted

    def _chunk(
        self, index: int, said: str, reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> str:
        key = "delta" if self._kind.chat else "text"
        usage = ',"usage":null' if self.identity.include_usage else ""
        return (
            f'{self._head}[{{"index":{index},"{key}":{said},'
            f'"logprobs":{compact(logprobs)},'
            f'"finish_reason":{compact(reason)}}}]{usage}}}\n\n'
        )


def error_event(code: str, message: str) -> str:
    """An error in a stream that has begun, as OpenAI's clients raise it."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return f"data: {compact({'error': error})}\n\n"


def _call(event: ToolCall) -> dict[str, Any]:
    """A piece of a tool call; its first has the call's id and name."""
    if not event.id:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.call, "id": event.id, "type": "function", "function": function}


def _usage(rows: list[Usage], n: int) -> dict[str, Any]:
    """The rows' together: each prompt counts once, by the first of its ``n`` rows."""
    prompt = sum(row.prompt_tokens for row in rows[::n])
    completion = sum(row.completion_tokens for row in rows)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(row.cached_tokens for row in rows[::n])},
        "completion_tokens_details": {"reasoning_tokens": sum(row.reasoning_tokens for row in rows)},
    }
