"""From what a caller writes to a row's tokens, and what is refused on the way."""

import copy
from typing import Any

import attrs
import pytest

import families
from motet.actors.intake import Intake, InvalidRequest, Prompt
from motet.actors.prefixes import common_prefix
from tool_samples import TOOLS
from tool_tokenizer import tool_tokenizer

TOKENIZER = families.tokenizer()
MESSAGES = [{"role": "user", "content": "a fox"}, {"role": "assistant", "content": "jumps"}]


@attrs.define
class Stub:
    """A tokenizer of one token a character, or that raises what it is given."""

    longest: int = 4
    error: Exception | None = None
    has_chat_template: bool = True
    has_tool_calling: bool = False

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "x" * self.longest: 1}

    def encode(self, text: str) -> list[int]:
        if self.error is not None:
            raise self.error
        return [0] * len(text)

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


def intake(tokenizer: Any = TOKENIZER, context: int | None = None) -> Intake:
    return Intake(tokenizer, families.VOCABULARY, context, cuts=True)


def refusal(prompt: Prompt, at: Intake) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        at.read(prompt, "the field")
    assert caught.value.param == "the field" and str(caught.value) == caught.value.message
    return caught.value


def test_text_is_tokenized() -> None:
    assert intake().read("the quick fox", "prompt").tokens == tuple(TOKENIZER.encode("the quick fox"))


def test_token_ids_are_taken_as_they_are() -> None:
    assert intake().read([0, 7, families.VOCABULARY - 1], "prompt").tokens == (0, 7, 511)


def test_messages_are_written_by_the_template_up_to_where_the_reply_begins() -> None:
    written = "<|start|>user\na fox<|end|>\n<|start|>assistant\njumps<|end|>\n<|start|>assistant\n"
    assert intake().read(MESSAGES, "messages").tokens == tuple(TOKENIZER.encode(written))


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_an_empty_prompt_is_refused(prompt: Prompt) -> None:
    assert refusal(prompt, intake()).code == "empty_prompt"
    assert refusal(prompt, intake(context=10)).code == "empty_prompt"


def test_a_template_that_writes_nothing_is_an_empty_prompt() -> None:
    assert refusal([{"role": "user", "content": ""}], intake(Stub())).code == "empty_prompt"


@pytest.mark.parametrize("token", [-1, families.VOCABULARY, 10**12])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    assert f"{token}" in refusal([5, token], intake()).message


@pytest.mark.parametrize(
    "prompt", [[True], [5, False], [5, 6.0], [5, "6"], [[5]], [5, {"content": "x"}], [None]]
)
def test_what_is_no_id_is_refused(prompt: Any) -> None:
    assert "integers" in refusal(prompt, intake()).message


# --- too long ---------------------------------------------------------------------------------


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert len(intake(context=10).read([5] * 9, "prompt").tokens) == 9
    assert refusal([5] * 10, intake(context=10)).code == "context_length_exceeded"
    assert len(intake(Stub(), context=10).read("a" * 9, "prompt").tokens) == 9
    assert refusal("a" * 10, intake(Stub(), context=10)).code == "context_length_exceeded"


def test_without_a_limit_nothing_is_too_long() -> None:
    assert len(intake().read([5] * 100_000, "prompt").tokens) == 100_000
    assert len(intake(Stub()).read("a" * 100_000, "prompt").tokens) == 100_000


def test_text_that_cannot_fit_is_refused_before_any_of_it_is_tokenized() -> None:
    """Ten tokens of four characters at most: 41 characters can never be ten tokens."""
    at = intake(Stub(longest=4, error=AssertionError("tokenized")), context=10)
    with pytest.raises(AssertionError):
        at.read("a" * 40, "prompt")
    assert refusal("a" * 41, at).code == "context_length_exceeded"
    halves = [{"role": "user", "content": "a" * 21}, {"role": "user", "content": "a" * 20}]
    assert refusal(halves, at).code == "context_length_exceeded"


def test_the_refusal_names_the_limit() -> None:
    assert "10 tokens" in refusal([5] * 12, intake(context=10)).message


# --- chats ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("roles must alternate"), KeyError("role"), RecursionError("deep")]
)
def test_what_the_template_raises_is_the_requests_fault(error: Exception) -> None:
    with pytest.raises(InvalidRequest) as caught:
        intake(Stub(error=error)).read(MESSAGES, "messages")
    assert caught.value.param == "messages"
    assert str(error) in caught.value.message and caught.value.__cause__ is error


def test_what_is_no_message_is_refused() -> None:
    broken: Any = [*MESSAGES, 5]
    refusal(broken, intake())
    refusal(broken, intake(context=10_000))


def test_a_model_without_a_template_takes_no_chats() -> None:
    assert "chat template" in refusal(MESSAGES, intake(Stub(has_chat_template=False))).message


def test_messages_without_content_are_left_to_the_template() -> None:
    messages: Any = [{"role": "assistant", "content": None}, {"role": "assistant"}]
    assert intake(context=families.CONTEXT).read(messages, "messages")


# --- tools ------------------------------------------------------------------------------------

TOOL_TOKENIZER = tool_tokenizer()
CALLED: Any = [
    {"role": "user", "content": "a fox"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"query": "fox"}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "found"},
]  # fmt: skip


def written(messages: Any, **options: Any) -> str:
    tokens = intake(TOOL_TOKENIZER).read(messages, "messages", **options).tokens
    return str(TOOL_TOKENIZER.decode(list(tokens)))


def test_tools_and_a_templates_values_are_written() -> None:
    text = written(CALLED, tools=TOOLS, template={"enable_thinking": False})
    assert text.startswith("<|start|>tools\n") and '"name": "get_weather"' in text
    assert '<tool_call>\n{"name": "search", "arguments": {"query": "fox"}}\n</tool_call>' in text
    assert text.endswith("<think>\n\n</think>\n\n")
    assert written(CALLED).endswith("<|start|>assistant\n<think>\n")


def test_a_chat_is_not_changed_by_being_written() -> None:
    before = copy.deepcopy(CALLED)
    written(CALLED, tools=TOOLS)
    assert before == CALLED


@pytest.mark.parametrize("name", ["tokenize", "tools", "chat_template", "add_generation_prompt"])
def test_what_the_server_itself_tells_the_template_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        intake(TOOL_TOKENIZER).read(CALLED, "messages", template={name: False})
    assert caught.value.param == "chat_template_kwargs" and name in caught.value.message


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ([], None),
        ("x", "tool_calls"),
        ([5], "tool_calls[0]"),
        ([{"function": {"name": 5}}], "tool_calls[0]"),
        ([{"function": {"name": "f", "arguments": "{"}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": "[]"}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": ""}}], None),
        ([{"function": {"name": "f", "arguments": {"a": 1}}}], None),
    ],
)
def test_calls_of_a_chat_are_checked(calls: Any, param: str | None) -> None:
    messages: Any = [MESSAGES[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    if param is None:
        assert written(messages)
        return
    with pytest.raises(InvalidRequest) as caught:
        written(messages)
    assert caught.value.param == f"messages[1].{param}"


def test_snapshots_are_taken_where_the_tools_end() -> None:
    """With no system prompt too: a fleet of agents shares its tools."""
    first, other = (
        intake(TOOL_TOKENIZER).read([{"role": "user", "content": content}], "messages", tools=TOOLS)
        for content in ("a fox", "the dog")
    )
    assert len(first.boundaries) == 1 and first.boundaries == other.boundaries
    assert len(TOOL_TOKENIZER.encode(str(TOOLS))) / 2 < first.boundaries[0]
    assert first.boundaries[0] <= common_prefix(first.tokens, other.tokens)


def test_a_turn_ends_where_the_template_with_its_tools_says() -> None:
    reader = Intake(TOOL_TOKENIZER, families.VOCABULARY, None, cuts=False)
    read = reader.read(CALLED, "messages", tools=TOOLS, template={"enable_thinking": False})
    turn = TOOL_TOKENIZER.decode(list(read.tokens[: read.boundaries[-1]]))
    assert turn.endswith("found<|end|>\n")
