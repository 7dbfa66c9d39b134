"""Anthropic's message object, whole and streamed.

https://docs.anthropic.com/en/api/messages and .../build-with-claude/streaming
"""

import json
import secrets
from typing import Any

from motet import Event, Failed, Finished, Reasoning, Text, ToolCall, Usage
from motet.http.errors import anthropic_kind, row_status
from motet.http.streaming import compact

SIGNATURE = "bW90ZXQ="
"""Of a thinking block. Nothing is signed, but some clients drop a block that has none."""

PING = 'event: ping\ndata: {"type":"ping"}\n\n'


class MessagesAnswer:
    """One message: its blocks as they grow, and the events that tell it.

    Args:
        model: the id that the answer carries.
    """

    def __init__(self, model: str) -> None:
        self.id = "msg_" + secrets.token_hex(12)
        self.prompt_tokens = 0
        """As far as is known; all of them before the first event is written."""
        self._model = model
        self._blocks: list[dict[str, Any]] = []
        self._open = False
        self._pieces: list[str] = []
        self._end: Finished | None = None

    # --- whole ---

    def whole(self) -> dict[str, Any]:
        """The message."""
        assert self._end is not None
        return self._message(self._blocks, _reason(self._end), self._end.stop, _usage(self._end.usage))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "stop_details": None,
            "usage": usage,
            "container": None,
        }

    # --- streamed ---

    def opening(self) -> str:
        """The message without its content. What was cached is known, and told, at its end."""
        message = self._message([], None, None, _usage(Usage(self.prompt_tokens, 0, 0)))
        return _event("message_start", message=message) + PING

    def event(self, event: Event) -> str:
        """An event of the row, as typed events."""
        match event:
            case Text(text=text):
                return self._grow({"type": "text", "text": ""}, "text_delta", "text", text)
            case Reasoning(text=text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._grow(block, "thinking_delta", "thinking", text)
            case ToolCall():
                return self._call(event)
            case Finished():
                return self._finish(event)
            case Failed(_, code, message):
                said = {"type": anthropic_kind(row_status(code)), "message": message, "code": code}
                return _event("error", error=said)

    def closing(self) -> str:
        """What a stream ends with; nothing after an error."""
        return _event("message_stop") if self._end is not None else ""

    def _grow(self, block: dict[str, Any], delta: str, key: str, text: str) -> str:
        if not text:
            return ""
        begun = "" if self._open and self._blocks[-1]["type"] == block["type"] else self._begin(block)
        self._pieces.append(text)
        return begun + self._delta({"type": delta, key: text})

    def _call(self, event: ToolCall) -> str:
        begun = ""
        if event.id:
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            begun = self._begin(block | {"caller": {"type": "direct"}})
        if not event.arguments:
            return begun
        self._pieces.append(event.arguments)
        return begun + self._delta({"type": "input_json_delta", "partial_json": event.arguments})

    def _begin(self, block: dict[str, Any]) -> str:
        ended = self._stop()
        start = _event("content_block_start", index=len(self._blocks), content_block=block)
        self._blocks.append(dict(block))
        self._open = True
        return ended + start

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _stop(self) -> str:
        """End the block that is open, if one is."""
        if not self._open:
            return ""
        self._open = False
        block, text = self._blocks[-1], "".join(self._pieces)
        self._pieces.clear()
        signed = ""
        match block["type"]:
            case "tool_use":
                block["input"] = _arguments(text)
            case "thinking":
                block |= {"thinking": text, "signature": SIGNATURE}
                signed = self._delta({"type": "signature_delta", "signature": SIGNATURE})
            case "text":
                block |= {"text": text, "citations": None}
        return signed + _event("content_block_stop", index=len(self._blocks) - 1)

    def _finish(self, end: Finished) -> str:
        ended = self._stop()
        self._end = end
        delta = {"stop_reason": _reason(end), "stop_sequence": end.stop}
        return ended + _event("message_delta", delta=delta, usage=_usage(end.usage))


def _arguments(text: str) -> Any:
    """A call's input; nothing if the token limit cut it, as the stop reason says."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}


def _reason(end: Finished) -> str:
    if end.stop is not None:
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[end.reason]


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts what was read from the cache apart from the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": None,
        "inference_geo": None,
    }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {compact({'type': kind, **fields})}\n\n"
