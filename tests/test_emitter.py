"""The emitter alone: what it is told, and what its caller and decode then hear."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import pytest
import structlog.testing
import trio

import families
from heard import Heard
from motet.actors.emitter import LONG, emitter
from motet.channels import caller, decode
from motet.channels.emitter import Accepted, Failed, Prepared, Rejected, ToEmitter, Tokens
from motet.channels.request import Sampling, Work
from motet.engine.output import Output
from motet.engine.pieces import Piece
from motet.engine.reasoning import Markup
from motet.engine.vocabulary import Vocabulary
from tool_samples import TOOLS
from tool_tokenizer import tool_tokenizer

TOKENIZER = families.tokenizer()
MARKUP = Markup(TOKENIZER)
VOCABULARY = Vocabulary(TOKENIZER)
WORK = Work(7, (40, 41, 42), 50, Sampling(), frozenset(TOKENIZER.eos_token_ids))
INDEX = 3


def letters(text: str) -> tuple[int, ...]:
    """One token a letter."""
    tokens = tuple(TOKENIZER.encode(letter)[0] for letter in text)
    assert len(tokens) == len(text) and TOKENIZER.decode(list(tokens)) == text
    return tokens


@attrs.frozen
class Said:
    """What came out."""

    events: list[caller.ToCaller]
    stops: list[decode.Stop]

    @property
    def texts(self) -> list[tuple[str, int]]:
        return [(e.text, e.completion_tokens) for e in self.events if isinstance(e, caller.Text)]


async def said(
    messages: Sequence[ToEmitter],
    *,
    stops: Sequence[str] = (),
    work: Work = WORK,
    output: Callable[[], Output] | None = None,
    caller_stays: bool = True,
) -> Said:
    """Run an emitter over messages, after which its mailbox is closed."""
    tell, inbox = trio.open_memory_channel[ToEmitter](len(messages))
    to_caller, events = trio.open_memory_channel[caller.ToCaller](100)
    to_decode = Heard()
    for message in messages:
        tell.send_nowait(message)
    tell.close()
    if not caller_stays:
        events.close()
    with trio.fail_after(10):
        make = output or partial(Output, MARKUP, stops)
        await emitter(inbox, to_caller, to_decode, work, INDEX, make, VOCABULARY, trio.CapacityLimiter(1))
        return Said([event async for event in events] if caller_stays else [], to_decode)


def finished(reason: Any, completion: int, cached: int = 0, stop: str | None = None) -> caller.Finished:
    return caller.Finished(INDEX, reason, caller.Usage(len(WORK.prompt), completion, cached), stop)


async def test_text_comes_as_the_tokens_do_with_the_count_so_far() -> None:
    tokens = [Tokens(letters("a")), Tokens(letters("bcd")), Tokens(letters("e"), "length")]
    out = await said([Accepted(), *tokens])
    assert out.events == [
        caller.Accepted(INDEX),
        caller.Text(INDEX, "a", 1),
        caller.Text(INDEX, "bcd", 4),
        caller.Text(INDEX, "e", 5),
        finished("length", 5),
    ]
    assert out.stops == []


async def test_half_a_character_is_counted_with_the_text_that_it_becomes() -> None:
    first, *rest = TOKENIZER.encode("é")
    assert rest
    out = await said([Tokens((first,)), Tokens(tuple(rest)), Tokens(letters("z"), "length")])
    assert out.texts == [("é", 1 + len(rest)), ("z", 2 + len(rest))]


async def test_cached_prompt_tokens_are_in_the_usage() -> None:
    out = await said([Accepted(), Prepared(2), Tokens(letters("a"), "length")])
    assert out.events[-1] == finished("length", 1, cached=2)


async def test_a_stop_string_split_over_messages_ends_the_row_and_stops_decode_once() -> None:
    """Tokens past the match are not counted, and nothing is told after the end."""
    messages = [Tokens(letters("ab")), Tokens(letters("cde")), Tokens(letters("bcf"), "length")]
    out = await said(messages, stops=["bc"])
    assert out.events == [caller.Text(INDEX, "a", 1), finished("stop", 3, stop="bc")]
    assert out.stops == [decode.Stop(7)]


async def test_a_stop_string_in_the_last_message_has_nothing_left_to_stop() -> None:
    out = await said([Tokens(letters("ab")), Tokens(letters("cd"), "length")], stops=["bc"])
    assert out.events == [caller.Text(INDEX, "a", 1), finished("stop", 3, stop="bc")]
    assert out.stops == []


async def test_text_that_began_a_stop_string_is_told_when_it_goes_on_otherwise() -> None:
    out = await said([Tokens(letters("ab")), Tokens(letters("x"), "length")], stops=["bc"])
    assert out.texts == [("a", 1), ("bx", 3)]
    assert out.events[-1] == finished("length", 3)


async def test_text_held_back_is_told_at_the_end() -> None:
    messages = [Tokens(letters("a")), Tokens(letters("b")), Tokens(letters("c"), "length")]
    out = await said(messages, stops=["bcd"])
    assert out.texts == [("a", 1), ("bc", 3)]
    assert out.events[-1] == finished("length", 3)


async def test_an_end_token_is_counted_but_is_never_text() -> None:
    """Whatever token it is: here a letter."""
    work = attrs.evolve(WORK, stop_tokens=frozenset(letters("z")))
    out = await said([Tokens(letters("a")), Tokens(letters("bz"), "stop")], work=work)
    assert out.texts[0] == ("a", 1) and [text for text, _ in out.texts] == ["a", "b"]
    assert out.events[-1] == finished("stop", 3)
    assert out.stops == []


TOOL_TOKENIZER = tool_tokenizer()
CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'


async def said_by_a_chat(text: str, finish: Any = "stop", stops: Sequence[str] = ()) -> Said:
    """A chat's reply that may call, a token a message."""
    tokens = TOOL_TOKENIZER.encode(text)
    messages = [Tokens((token,)) for token in tokens[:-1]] + [Tokens((tokens[-1],), finish)]
    output = partial(Output, Markup(TOOL_TOKENIZER), stops, begins="reasoning", tools=TOOLS)
    return await said(messages, output=output)


async def test_thinking_answer_and_calls_are_events_of_their_own() -> None:
    out = await said_by_a_chat(f"Hm</think>So {CALL}")
    thought = "".join(event.text for event in out.events if isinstance(event, caller.Reasoning))
    calls = [event for event in out.events if isinstance(event, caller.ToolCall)]
    assert (thought, "".join(text for text, _ in out.texts)) == ("Hm", "So")
    assert [(call.call, call.name) for call in calls if call.id] == [(0, "search")]
    assert "".join(call.arguments for call in calls) == '{"query": "x"}' and len(calls) > 5
    end = out.events[-1]
    assert isinstance(end, caller.Finished) and (end.reason, end.stop) == ("tool_calls", None)
    assert end.usage.reasoning_tokens == len(TOOL_TOKENIZER.encode("Hm</think>"))
    assert end.usage.completion_tokens == len(TOOL_TOKENIZER.encode(f"Hm</think>So {CALL}"))


@pytest.mark.parametrize(
    ("text", "finish", "stops", "reason"),
    [
        (f"</think>{CALL}", "length", [], "length"),
        (f"</think>{CALL}the end", "stop", ["end"], "stop"),
        (f"</think>{CALL[:-20]}", "stop", [], "stop"),
        ("</think><tool_call>{}</tool_call>", "stop", [], "stop"),
        (CALL, "stop", [], "tool_calls"),
    ],
)
async def test_a_reply_ends_with_calls_if_it_made_one_and_ended_by_itself(
    text: str, finish: Any, stops: list[str], reason: str
) -> None:
    end = (await said_by_a_chat(text, finish, stops)).events[-1]
    assert isinstance(end, caller.Finished) and end.reason == reason
    assert end.stop == (stops[0] if stops else None)


async def test_a_malformed_call_is_text_and_leaves_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("motet.actors.emitter.log", log)
    text = '<tool_call>{"name": "delete"}</tool_call>'
    out = await said_by_a_chat(f"</think>{text}")
    assert [said for said, _ in out.texts] == [text]
    assert [call.kwargs["errors"] for call in log.calls if call.method_name == "warning"] == [
        ["no tool 'delete' was offered"]
    ]


async def test_an_end_token_alone_gives_no_text_event() -> None:
    out = await said([Tokens(tuple(WORK.stop_tokens), "stop")])
    assert out.events == [finished("stop", 1)]


async def test_an_end_token_flushes_what_was_held_back() -> None:
    out = await said([Tokens(letters("ab")), Tokens(tuple(WORK.stop_tokens), "stop")], stops=["bc"])
    assert [text for text, _ in out.texts] == ["a", "b"]
    assert out.events[-1] == finished("stop", 3)


async def test_a_failure_is_the_last_event() -> None:
    late = Tokens(letters("b"), "length")
    out = await said([Tokens(letters("a")), Failed("step_failed", "boom"), late])
    assert out.events == [caller.Text(INDEX, "a", 1), caller.Failed(INDEX, "step_failed", "boom")]
    assert out.stops == []


async def test_a_rejection_is_the_only_event() -> None:
    assert (await said([Rejected("busy"), Accepted()])).events == [caller.Rejected(INDEX, "busy")]


async def test_a_caller_that_has_left_does_not_disturb_it() -> None:
    messages: list[ToEmitter] = [
        Accepted(),
        Tokens(letters("ab")),
        Tokens(letters("c")),
        Tokens(letters("d"), "length"),
    ]
    out = await said(messages, stops=["bc"], caller_stays=False)
    assert out.stops == [decode.Stop(7)]


async def test_a_mailbox_that_closes_ends_it_without_a_terminal_event() -> None:
    """The caller sees its channel close, and knows by that that the row was cut short."""
    out = await said([Accepted(), Tokens(letters("a"))])
    assert out.events == [caller.Accepted(INDEX), caller.Text(INDEX, "a", 1)]
    assert out.stops == []


class Breaking(Output):
    """Breaks at its second push."""

    pushes = 0

    def push(self, tokens: Iterable[int]) -> tuple[list[Piece], int]:
        self.pushes += 1
        if self.pushes == 2:
            raise ValueError("injected")
        return super().push(tokens)


async def test_a_fault_in_the_text_fails_the_row_and_stops_decode() -> None:
    messages = [Tokens(letters("a")), Tokens(letters("b")), Tokens(letters("c"), "length")]
    out = await said(messages, output=lambda: Breaking(MARKUP))
    assert out.events == [
        caller.Text(INDEX, "a", 1),
        caller.Failed(INDEX, "emitter_failed", "ValueError: injected"),
    ]
    assert out.stops == [decode.Stop(7)]


async def test_a_text_that_cannot_begin_fails_the_row_too() -> None:
    def broken() -> Output:
        raise ValueError("injected")

    out = await said([Accepted(), Tokens(letters("a"))], output=broken)
    assert out.events == [caller.Failed(INDEX, "emitter_failed", "ValueError: injected")]
    assert out.stops == [decode.Stop(7)]


async def test_a_long_tool_call_is_parsed_while_others_go_on() -> None:
    """Its parser may take seconds: here it waits until another task has run meanwhile."""
    parsing, released = threading.Event(), threading.Event()

    class Slow(Output):
        pending = LONG

        def push(self, tokens: Iterable[int]) -> tuple[list[Piece], int]:
            parsing.set()
            assert released.wait(10)
            return super().push(tokens)

    async def other() -> None:
        await trio.to_thread.run_sync(parsing.wait)
        released.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        out = await said([Tokens(letters("a"), "length")], output=partial(Slow, MARKUP, ()))
    assert out.events == [caller.Text(INDEX, "a", 1), finished("length", 1)]


async def test_a_caller_that_leaves_does_not_wait_for_a_parser() -> None:
    parsing, released = threading.Event(), threading.Event()

    class Stuck(Output):
        pending = LONG

        def push(self, tokens: Iterable[int]) -> tuple[list[Piece], int]:
            parsing.set()
            released.wait(10)
            return super().push(tokens)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(said, [Tokens(letters("a"), "length")], output=partial(Stuck, MARKUP, ()))
            )
            await trio.to_thread.run_sync(parsing.wait)
            nursery.cancel_scope.cancel()
        assert not released.is_set()
    finally:
        released.set()
