"""The body of POST /v1/chat/completions.

https://platform.openai.com/docs/api-reference/chat/create
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, Field, JsonValue

from motet import InvalidRequest, Request, grammar
from motet.http.generation import Generation, Metadata, NonEmpty, TokenCount, refuse_unsupported
from motet.http.schema import UNSEEN, Body, Image, finite

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Object = Annotated[dict[str, JsonValue], AfterValidator(finite)]


class TextPart(Body):
    type: Literal["text", "input_text"]
    text: str
    cache_control: Object | None = None
    """Without effect: every prefix is kept."""


class ImagePart(Image):
    type: Literal["image_url"]
    image_url: Object


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
ReplyPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content = str | Annotated[list[Part], Field(fail_fast=True, min_length=1)]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Content
    name: str | None = None


class CalledFunction(Body):
    name: NonEmpty
    arguments: str
    """JSON text."""


class MessageToolCall(Body):
    id: NonEmpty
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Without effect; clients that put a stream's pieces together leave it in."""


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | Annotated[list[ReplyPart], Field(fail_fast=True, min_length=1)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Len(0, 128)] | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    annotations: list[Object] | None = None
    """Without effect, as ``audio``: they stand in answers that come back."""
    audio: Object | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Content
    tool_call_id: NonEmpty
    name: str | None = None


class FunctionMessage(Body):
    role: Literal["function"]
    content: str | None
    name: NonEmpty


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage,
    Field(discriminator="role"),
]


class Function(Body):
    name: Name
    description: str | None = None
    parameters: Object | None = None
    """A JSON schema."""
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function
    cache_control: Object | None = None
    """Without effect: every prefix is kept."""


class ChosenFunction(Body):
    name: Name


class ToolChoice(Body):
    type: Literal["function"]
    function: ChosenFunction


class AllowedToolNames(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Len(1, 128)]


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolNames


class TextFormat(Body):
    type: Literal["text"]


class JSONObjectFormat(Body):
    type: Literal["json_object"]


class JSONSchema(Body):
    name: Name
    description: str | None = None
    schema_: Object | None = Field(None, alias="schema")
    strict: bool | None = None


class JSONSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JSONSchema


ResponseFormat = Annotated[
    TextFormat | JSONObjectFormat | JSONSchemaFormat,
    Field(discriminator="type"),
]


class ChatRequest(Generation):
    """A chat completion."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: TokenCount | None = None
    """The newer name of ``max_tokens``, and stronger."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Len(0, 128)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | Annotated[ToolChoice | AllowedTools, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Told to the model's chat template, which may not know it."""
    chat_template_kwargs: Object | None = None
    """More values for the model's chat template."""
    functions: Annotated[list[Function], Len(0, 128)] | None = None
    function_call: Literal["none", "auto"] | ChosenFunction | None = None
    prediction: Object | None = None
    audio: Object | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    web_search_options: Object | None = None
    metadata: Metadata | None = None
    moderation: Object | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Object | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def requests(self, client: str) -> list[Request]:
        """Its rows."""
        refuse_unsupported(self)
        options = self.options()
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise InvalidRequest("'top_logprobs' needs 'logprobs': true", "top_logprobs", "invalid_value")
        messages = [written(message) for message in self.messages]
        options |= self._form() | self._choice() | {"template": self._template()}
        if self.parallel_tool_calls is False:
            options["parallel_tool_calls"] = False
        return [Request(messages, **options, param="messages", client=client)]

    def _form(self) -> dict[str, Any]:
        """What the reply's text must match, if it has one and is not calls. It always does, strict or not."""
        asked = self.response_format
        if asked is None or isinstance(asked, TextFormat):
            return {}
        if self.grammar is not None:
            raise InvalidRequest(
                "'grammar' and 'response_format' exclude each other", "grammar", "invalid_value"
            )
        if isinstance(asked, JSONObjectFormat):
            return {"grammar": grammar.json_object(), "grammar_param": "response_format"}
        try:
            text = grammar.json_schema(asked.json_schema.schema_ or {})
        except grammar.GrammarError as error:
            raise InvalidRequest(
                f"'response_format' cannot be honoured: {error}", "response_format", "invalid_grammar"
            ) from None
        return {"grammar": text, "grammar_param": "response_format"}

    def _choice(self) -> dict[str, Any]:
        """The tools that the model is told of, and whether they must be called."""
        offered = tuple(told_tool(tool) for tool in self.tools or ())
        match self.tool_choice:
            case None | "auto":
                return {"tools": offered}
            case "none":
                return {}
            case "required":
                return {"tools": offered, "must_call": True}
            case ToolChoice(function=chosen):
                return {"tools": offered, "must_call": chosen.name}
            case AllowedTools(allowed_tools=allowed):
                names = {choice.function.name for choice in allowed.tools}
                tools = tuple(tool for tool in offered if tool["function"]["name"] in names)
                return {"tools": tools, "must_call": allowed.mode == "required"}

    def _template(self) -> dict[str, Any]:
        """Values for the chat template. Those that know no effort can only think or not."""
        values: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            values["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                values["enable_thinking"] = False
        return values | (self.chat_template_kwargs or {})


def written(message: Message) -> dict[str, Any]:
    """A message as a chat template reads it."""
    match message:
        case SystemMessage():
            return {"role": "system", "content": _text(message.content)} | _named(message.name)
        case UserMessage():
            return {"role": "user", "content": _text(message.content)} | _named(message.name)
        case ToolMessage():
            said = {"role": "tool", "content": _text(message.content), "tool_call_id": message.tool_call_id}
            return said | _named(message.name)
        case FunctionMessage():
            return {"role": "function", "content": message.content or "", "name": message.name}
        case AssistantMessage():
            return _assistant(message)


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": _text(message.content)} | _named(message.name)
    if message.reasoning_content:
        said["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    return said


def told_tool(tool: Tool) -> dict[str, Any]:
    """A tool as a chat template reads it: without what is not for the model."""
    function = tool.function
    said: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        said["description"] = function.description
    said["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": said}


def _named(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}


def _text(content: str | Sequence[TextPart | ImagePart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(map(_part, content))


def _part(part: TextPart | ImagePart | RefusalPart) -> str:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return UNSEEN
        case RefusalPart():
            return part.refusal
