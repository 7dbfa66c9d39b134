"""The body of Anthropic's POST /v1/messages, and the chat request that it amounts to.

https://docs.anthropic.com/en/api/messages
"""

import itertools
import json
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Field

from motet import InvalidRequest
from motet.http.chat_request import (
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    ChosenFunction,
    Function,
    JSONSchema,
    JSONSchemaFormat,
    Message,
    MessageToolCall,
    Name,
    Object,
    SystemMessage,
    Tool,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from motet.http.generation import NonEmpty, TokenCount
from motet.http.schema import UNSEEN, Body, Image

IGNORED = frozenset(
    {"cache_control", "container", "context_management", "inference_geo", "metadata", "service_tier", "speed"}
)
"""Fields of Anthropic's API that are accepted, checked, and without effect on what is generated here."""

_BILLING = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n?", re.IGNORECASE)


class TextBlock(Body):
    type: Literal["text"]
    text: str
    cache_control: Object | None = None
    """Without effect: every prefix is kept."""
    citations: list[Object] | None = None
    """Without effect: they stand in answers that come back."""


class ImageBlock(Image):
    type: Literal["image"]
    source: Object
    cache_control: Object | None = None


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    """Without effect: this server signs nothing."""


class RedactedThinkingBlock(Body):
    """Without effect."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: NonEmpty
    name: Name
    input: Object
    cache_control: Object | None = None
    caller: Object | None = None


Texts = Annotated[list[TextBlock], Field(fail_fast=True)]


ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: NonEmpty
    content: str | Annotated[list[ResultBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = None
    cache_control: Object | None = None


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]

Block = TextBlock | ImageBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class UserTurn(Body):
    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(fail_fast=True, min_length=1)]


class AssistantTurn(Body):
    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class CustomTool(Body):
    """A tool of the client's own: this server has none to offer."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Object
    cache_control: Object | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """Without effect, as those below: arguments are always streamed as they come."""
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[Object] | None = None


class AutoChoice(Body):
    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body):
    type: Literal["none"]


class NamedChoice(Body):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Ge(1024)] | None = None
    """Without effect: nothing but max_tokens bounds the thinking."""
    display: Literal["summarized", "omitted"] | None = None
    """Without effect: thinking is told as it is."""


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Object = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Prompt(Body):
    """What both /v1/messages and /v1/messages/count_tokens read."""

    model: str
    """The id at /v1/models, its last path part, or 'default_model'."""
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1)]
    system: str | Texts | None = None
    tools: Annotated[list[CustomTool], Len(0, 128)] | None = None
    tool_choice: Annotated[AutoChoice | NoChoice | NamedChoice, Field(discriminator="type")] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Object | None = None
    context_management: Object | None = None
    speed: str | None = None

    def chat(self, *, strip_billing: bool) -> ChatRequest:
        """The chat request that asks for the same."""
        return ChatRequest(**self.asked(strip_billing))

    def asked(self, strip_billing: bool) -> dict[str, Any]:
        """The chat request's fields."""
        if isinstance(self.messages[-1], AssistantTurn):
            raise InvalidRequest(
                "the last of 'messages' must be the user's: a reply that is begun cannot be continued",
                "messages",
                "invalid_value",
            )
        messages: list[Message] = []
        if system := self._system(strip_billing):
            messages.append(SystemMessage(role="system", content=system))
        # Turns of one role are one turn: strict templates refuse several.
        for role, turns in itertools.groupby(self.messages, key=attrgetter("role")):
            contents = [_blocks(turn.content) for turn in turns]
            messages += _user(contents) if role == "user" else [_assistant(contents)]
        fields: dict[str, Any] = {"model": self.model, "messages": messages}
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
        return fields | self._choice() | self._output() | self._template()

    def _system(self, strip_billing: bool) -> str:
        blocks = [self.system] if isinstance(self.system, str) else [b.text for b in self.system or ()]
        if blocks and strip_billing:
            blocks[0] = _BILLING.sub("", blocks[0], count=1) if _BILLING.match(blocks[0]) else blocks[0]
        return "\n\n".join(filter(None, blocks))

    def _choice(self) -> dict[str, Any]:
        match self.tool_choice:
            case None:
                return {}
            case NoChoice():
                return {"tool_choice": "none"}
            case NamedChoice(name=name):
                function = ChosenFunction(name=name)
                chosen: dict[str, Any] = {"tool_choice": ToolChoice(type="function", function=function)}
            case AutoChoice(type=kind):
                chosen = {"tool_choice": "auto" if kind == "auto" else "required"}
        if self.tool_choice.disable_parallel_tool_use:
            chosen["parallel_tool_calls"] = False
        return chosen

    def _output(self) -> dict[str, Any]:
        asked = (self.output_config and self.output_config.format) or self.output_format
        if asked is None:
            return {}
        schema = JSONSchema(name="output", schema=asked.schema_, strict=True)
        return {"response_format": JSONSchemaFormat(type="json_schema", json_schema=schema)}

    def _template(self) -> dict[str, Any]:
        # In this API a model thinks only when asked to; many a template has it think by itself.
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinks}}
        if self.output_config is not None and self.output_config.effort is not None:
            fields["reasoning_effort"] = self.output_config.effort
        return fields


class CountRequest(Prompt):
    """How many tokens a message would have."""


class UserData(Body):
    user_id: str | None = None


class MessagesRequest(Prompt):
    """A message in Anthropic's form."""

    max_tokens: TokenCount
    """Tokens to generate at most."""
    stop_sequences: Annotated[list[NonEmpty], Len(0, 16)] | None = None
    temperature: Annotated[float, Ge(0), Le(1)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(0), Le(1 << 31)] | None = None
    """0 is off."""
    stream: bool | None = None
    priority: Literal["interactive", "background"] | None = None
    """Ours: who waits for whom."""
    seed: Annotated[int, Ge(0), Le((1 << 63) - 1)] | None = None
    """Ours: makes sampling repeatable."""
    metadata: UserData | None = None
    service_tier: str | None = None
    container: str | None = None
    inference_geo: str | None = None

    def asked(self, strip_billing: bool) -> dict[str, Any]:
        """The chat request's fields."""
        own = {
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "priority": self.priority,
            "seed": self.seed,
        }
        return super().asked(strip_billing) | {k: v for k, v in own.items() if v is not None}


def _blocks(content: str | Sequence[Block]) -> Sequence[Block]:
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


def _user(contents: Sequence[Sequence[Block]]) -> list[Message]:
    """A user's turn: the results of tools first, each a message of its own, then what the user says."""
    results: list[Message] = []
    texts: list[str] = []
    for content in contents:
        results += [_result(block) for block in content if isinstance(block, ToolResultBlock)]
        if shown := [block for block in content if isinstance(block, TextBlock | ImageBlock)]:
            texts.append("".join(map(_shown, shown)))
    said = "\n\n".join(filter(None, texts))
    return [*results, UserMessage(role="user", content=said)] if texts else results


def _result(block: ToolResultBlock) -> ToolMessage:
    content = block.content or ""
    shown = content if isinstance(content, str) else "".join(map(_shown, content))
    # Templates have no other place to say it.
    text = f"Error: {shown}" if block.is_error else shown
    return ToolMessage(role="tool", content=text, tool_call_id=block.tool_use_id)


def _assistant(contents: Sequence[Sequence[Block]]) -> AssistantMessage:
    texts = ["".join(b.text for b in content if isinstance(b, TextBlock)) for content in contents]
    thoughts = ["".join(b.thinking for b in content if isinstance(b, ThinkingBlock)) for content in contents]
    calls = [
        MessageToolCall(
            id=block.id, function=CalledFunction(name=block.name, arguments=json.dumps(block.input))
        )
        for block in itertools.chain.from_iterable(contents)
        if isinstance(block, ToolUseBlock)
    ]
    return AssistantMessage(
        role="assistant",
        content="\n\n".join(filter(None, texts)),
        reasoning_content="\n\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _shown(block: TextBlock | ImageBlock) -> str:
    return block.text if isinstance(block, TextBlock) else UNSEEN


def _tool(tool: CustomTool) -> Tool:
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool(type="function", function=function)
