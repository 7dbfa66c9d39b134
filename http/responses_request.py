"""The body of POST /v1/responses, and the chat request that it amounts to.

https://platform.openai.com/docs/api-reference/responses/create and https://www.openresponses.org
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import Discriminator, Field, Tag

from motet.http.chat_request import (
    AllowedToolNames,
    AllowedTools,
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    ChosenFunction,
    Function,
    JSONObjectFormat,
    JSONSchema,
    JSONSchemaFormat,
    Message,
    MessageToolCall,
    Name,
    Object,
    SystemMessage,
    TextFormat,
    Tool,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from motet.http.generation import Metadata, NonEmpty, Penalty, StreamOptions, TokenCount
from motet.http.schema import UNSEEN, Body, Image

IGNORED = frozenset(
    {
        "include",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
        "user",
    }
)
"""Fields of the Responses API that are accepted, checked, and without effect on what is generated here."""


class InputText(Body):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str
    annotations: list[Object] | None = None
    """Without effect, as ``logprobs``: they stand in answers that come back."""
    logprobs: list[Object] | None = None


class InputImage(Image):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputRefusal(Body):
    type: Literal["refusal"]
    refusal: str


InputTexts = Annotated[list[InputText], Field(fail_fast=True)]
InputPart = Annotated[InputText | InputImage | InputRefusal, Field(discriminator="type")]
InputParts = Annotated[list[InputPart], Field(fail_fast=True)]


class MessageItem(Body):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | InputParts
    id: str | None = None
    status: str | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    """Without effect."""


class FunctionCallItem(Body):
    type: Literal["function_call"]
    call_id: NonEmpty
    name: Name
    arguments: str
    """JSON text."""
    id: str | None = None
    status: str | None = None
    namespace: str | None = None


class FunctionCallOutputItem(Body):
    type: Literal["function_call_output"]
    call_id: NonEmpty
    output: str | InputParts
    id: str | None = None
    status: str | None = None


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    summary: InputTexts | None = None
    content: InputTexts | None = None
    encrypted_content: str | None = None
    """Without effect."""
    status: str | None = None


def _item_kind(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None) or "message"
    return kind if isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_kind),
]


class FunctionTool(Body):
    """A function of the client's own: this server has no tools to offer."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Object | None = None
    """A JSON schema."""
    strict: bool | None = None
    defer_loading: bool | None = None
    """Without effect."""


class FunctionChoice(Body):
    type: Literal["function"]
    name: Name


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Len(1, 128)]


class NamedSchemaFormat(Body):
    type: Literal["json_schema"]
    name: Name
    schema_: Object = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    format: (
        Annotated[TextFormat | JSONObjectFormat | NamedSchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Without effect."""


class Reasoning(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Told to the model's chat template, which may not know it."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Without effect, as ``generate_summary``: thinking is told as it is."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(Body):
    """A response."""

    model: str
    """The id at /v1/models, its last path part, or 'default_model'."""
    input: NonEmpty | Annotated[list[Item], Field(fail_fast=True, min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    """A response that was stored and is still held: this one goes on from it."""
    store: bool | None = None
    """Whether the response is held; true is the default."""
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    """0 is greedy. The default of this and the next is the model's."""
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Ge(0), Le(0)] | None = None
    """Not served here: use /v1/chat/completions."""
    seed: Annotated[int, Ge(0), Le((1 << 63) - 1)] | None = None
    """Ours: makes sampling repeatable."""
    priority: Literal["interactive", "background"] | None = None
    """Ours: who waits for whom."""
    tools: Annotated[list[FunctionTool], Len(0, 128)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | Annotated[FunctionChoice | AllowedChoice, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    max_tool_calls: None = None
    conversation: None = None
    prompt: None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None

    def turns(self) -> list[Message]:
        """What the input adds to the conversation."""
        if isinstance(self.input, str):
            return [UserMessage(role="user", content=self.input)]
        return messages_of(self.input)

    def chat(self, earlier: Sequence[Message]) -> ChatRequest:
        """The chat request that asks for the same.

        Args:
            earlier: the conversation that this response goes on from.
        """
        messages = [*earlier, *self.turns()]
        if self.instructions:
            messages.insert(0, SystemMessage(role="system", content=self.instructions))
        asked = {
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "priority": self.priority,
            "tools": [_tool(tool) for tool in self.tools] if self.tools else None,
            "tool_choice": self._choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self._format(),
            "reasoning_effort": self.reasoning and self.reasoning.effort,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return ChatRequest(model=self.model, messages=messages, **given)

    def _choice(self) -> Any:
        match self.tool_choice:
            case FunctionChoice(name=name):
                return _named(name)
            case AllowedChoice(mode=mode, tools=tools):
                names = AllowedToolNames(mode=mode, tools=[_named(tool.name) for tool in tools])
                return AllowedTools(type="allowed_tools", allowed_tools=names)
            case choice:
                return choice

    def _format(self) -> Any:
        match self.text and self.text.format:
            case NamedSchemaFormat() as asked:
                schema = JSONSchema(
                    name=asked.name, description=asked.description, schema=asked.schema_, strict=asked.strict
                )
                return JSONSchemaFormat(type="json_schema", json_schema=schema)
            case asked:
                return asked


def messages_of(items: Iterable[Item]) -> list[Message]:
    """A chat's messages; reasoning and calls belong to one turn of the assistant."""
    messages: list[Message] = []
    for item in items:
        match item:
            case MessageItem(role="assistant"):
                messages.append(_onto(messages, content=_text(item.content)))
            case MessageItem(role="user"):
                messages.append(UserMessage(role="user", content=_text(item.content)))
            case MessageItem():
                messages.append(SystemMessage(role="system", content=_text(item.content)))
            case FunctionCallItem():
                call = CalledFunction(name=item.name, arguments=item.arguments)
                messages.append(_onto(messages, call=MessageToolCall(id=item.call_id, function=call)))
            case FunctionCallOutputItem():
                messages.append(
                    ToolMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id)
                )
            case ReasoningItem():
                messages.append(
                    AssistantMessage(
                        role="assistant", reasoning_content=_text(item.content or item.summary or [])
                    )
                )
    return messages


def _onto(
    messages: list[Message], *, content: str | None = None, call: MessageToolCall | None = None
) -> AssistantMessage:
    """The assistant's turn with what comes next; its beginning is taken off the messages."""
    last = messages[-1] if messages else None
    if not isinstance(last, AssistantMessage) or (content is not None and last.content is not None):
        last = AssistantMessage(role="assistant")
    else:
        messages.pop()
    if content is not None:
        return last.model_copy(update={"content": content})
    return last.model_copy(update={"tool_calls": [*(last.tool_calls or []), call]})


def _text(content: str | Sequence[InputText | InputImage | InputRefusal]) -> str:
    return content if isinstance(content, str) else "".join(map(_part, content))


def _part(part: InputText | InputImage | InputRefusal) -> str:
    match part:
        case InputText():
            return part.text
        case InputImage():
            return UNSEEN
        case InputRefusal():
            return part.refusal


def _named(name: str) -> ToolChoice:
    return ToolChoice(type="function", function=ChosenFunction(name=name))


def _tool(tool: FunctionTool) -> Tool:
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)
