"""The response object of OpenAI's Responses API, whole and streamed.

https://platform.openai.com/docs/api-reference/responses/object and .../responses-streaming
"""

import secrets
import time
from typing import Any

from motet import Event, Failed, Finished, Reasoning, Text, ToolCall, Usage
from motet.http.generation import plain
from motet.http.responses_request import (
    FunctionCallItem,
    InputText,
    Item,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
)
from motet.http.streaming import compact


class ResponsesAnswer:
    """One response: its items as they grow, and the events that tell them.

    Args:
        model: the id that the answer carries.
        asked: the request, much of which a response repeats.
        temperature, top_p: what the model is sampled with where the request says nothing.
    """

    def __init__(
        self, model: str, asked: ResponsesRequest, *, temperature: float = 0.0, top_p: float = 1.0
    ) -> None:
        self.id = "resp_" + secrets.token_hex(16)
        self.over = False
        """Whether it has ended as it should: completed or incomplete."""
        self._asked = asked
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._response = _resource(self.id, model, asked)
        self._response["temperature"] = temperature if asked.temperature is None else asked.temperature
        self._response["top_p"] = top_p if asked.top_p is None else asked.top_p

    # --- whole ---

    def whole(self) -> dict[str, Any]:
        """The response as it is now."""
        return self._response | {"output": self._items}

    def items(self) -> list[Item]:
        """What came out, as items of a later request's input."""
        return [_as_input(item) for item in self._items]

    # --- streamed ---

    def opening(self) -> str:
        """The response without its output, twice, as the API has it."""
        response = self._response | {"output": []}
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def event(self, event: Event) -> str:
        """An event of the row, as typed events."""
        match event:
            case Text(text=text):
                return self._grow("message", text)
            case Reasoning(text=text):
                return self._grow("reasoning", text)
            case ToolCall():
                return self._call(event)
            case Finished():
                return self._finish(event)
            case Failed(_, code, message):
                return self._fail(code, message)

    def closing(self) -> str:
        """What a stream ends with."""
        return "data: [DONE]\n\n"

    def _grow(self, kind: str, text: str) -> str:
        if not text:
            return ""
        begun = "" if self._open and self._items[-1]["type"] == kind else self._begin_text(kind)
        self._pieces.append(text)
        place = self._place() | {"content_index": 0, "delta": text}
        if kind == "message":
            return begun + self._event("response.output_text.delta", **place, logprobs=[])
        return begun + self._event("response.reasoning_text.delta", **place)

    def _begin_text(self, kind: str) -> str:
        if kind == "message":
            item = {"type": "message", "id": _name("msg_"), "role": "assistant", "content": []}
        else:
            item = {"type": "reasoning", "id": _name("rs_"), "summary": [], "content": []}
        begun = self._begin(item)
        part = self._place() | {"content_index": 0, "part": _part(kind, "")}
        return begun + self._event("response.content_part.added", **part)

    def _call(self, event: ToolCall) -> str:
        begun = ""
        if event.id:
            item = {"type": "function_call", "id": _name("fc_"), "call_id": event.id, "name": event.name}
            begun = self._begin(item | {"arguments": ""})
        if not event.arguments:
            return begun
        self._pieces.append(event.arguments)
        delta = self._place() | {"delta": event.arguments}
        return begun + self._event("response.function_call_arguments.delta", **delta)

    @property
    def _open(self) -> bool:
        return bool(self._items) and self._items[-1]["status"] == "in_progress"

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _begin(self, item: dict[str, Any]) -> str:
        ended = self._end_item("completed")
        self._items.append(item | {"status": "in_progress"})
        added = {"output_index": len(self._items) - 1, "item": self._items[-1]}
        return ended + self._event("response.output_item.added", **added)

    def _end_item(self, status: str) -> str:
        """End the item that is open, if one is."""
        if not self._open:
            return ""
        item, place, text = self._items[-1], self._place(), "".join(self._pieces)
        self._pieces.clear()
        if item["type"] == "function_call":
            item["arguments"] = text
            told = self._event(
                "response.function_call_arguments.done", **place, arguments=text, name=item["name"]
            )
        else:
            part = _part(item["type"], text)
            item["content"] = [part]
            told = self._text_done(item["type"], place | {"content_index": 0}, text)
            told += self._event("response.content_part.done", **place, content_index=0, part=part)
        item["status"] = status
        done = {"output_index": place["output_index"], "item": item}
        return told + self._event("response.output_item.done", **done)

    def _text_done(self, kind: str, place: dict[str, Any], text: str) -> str:
        if kind == "message":
            return self._event("response.output_text.done", **place, text=text, logprobs=[])
        return self._event("response.reasoning_text.done", **place, text=text)

    def _finish(self, end: Finished) -> str:
        status = "incomplete" if end.reason == "length" else "completed"
        # An empty answer is an answer.
        begun = "" if self._items else self._begin_text("message")
        ended = begun + self._end_item(status)
        self.over = True
        self._response |= {"status": status, "usage": _usage(end.usage)}
        if status == "incomplete":
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._response["completed_at"] = int(time.time())
        return ended + self._event(f"response.{status}", response=self.whole())

    def _fail(self, code: str, message: str) -> str:
        ended = self._end_item("incomplete")
        status = "cancelled" if code == "request_cancelled" else "failed"
        self._response |= {"status": status, "error": {"code": code, "message": message}}
        return ended + self._event("response.failed", response=self.whole())

    def _event(self, kind: str, **fields: Any) -> str:
        said = compact({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return f"event: {kind}\ndata: {said}\n\n"


def _resource(name: str, model: str, asked: ResponsesRequest) -> dict[str, Any]:
    """A response that has just begun, with the request's settings."""
    text = asked.text
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "error": None,
        "model": model,
        "output": [],
        "usage": None,
        "previous_response_id": asked.previous_response_id,
        "instructions": asked.instructions,
        "tools": [_tool(plain(tool)) for tool in asked.tools or ()],
        "tool_choice": plain(asked.tool_choice) or "auto",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "top_logprobs": 0,
        "text": {"format": _format(plain(text.format)) if text and text.format else {"type": "text"}},
        "reasoning": {
            "effort": asked.reasoning and asked.reasoning.effort,
            "summary": asked.reasoning and asked.reasoning.summary,
        },
        "truncation": "disabled",
        "store": asked.store is not False,
        "background": False,
        "service_tier": "default",
        "metadata": asked.metadata or {},
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
        "user": asked.user,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None} | tool


def _format(asked: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "strict": False} | asked if asked["type"] == "json_schema" else asked


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def _as_input(item: dict[str, Any]) -> Item:
    match item["type"]:
        case "message":
            return MessageItem(role="assistant", content=item["content"][0]["text"])
        case "reasoning":
            parts = [InputText(type="reasoning_text", text=part["text"]) for part in item["content"]]
            return ReasoningItem(type="reasoning", content=parts)
        case _:
            return FunctionCallItem(
                type="function_call",
                call_id=item["call_id"],
                name=item["name"],
                arguments=item["arguments"],
            )


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _name(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
