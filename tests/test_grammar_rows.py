"""Rows held to grammars, in a running engine: beside plain rows, alone, recovered, refused."""

import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
import trio

import families
import motet
from motet import Request, grammar
from motet.actors import decode as decoding
from motet.actors.system import Settings, open_system
from motet.channels.admission import Released
from motet.channels.decode import Stop
from motet.channels.device import RowTokens
from motet.channels.emitter import Failed, Tokens
from motet.engine import group as groups
from motet.engine.constraints import constraint as constraints
from motet.engine.constraints.constraint import Grammars
from served import chat, served, streamed
from test_constraints import TOOLS
from test_containment import wait_empty
from test_decode import Bench, stepped
from test_recovery import Breaking, recovered
from tool_tokenizer import tool_tokenizer

LIMIT = 72
PROMPTS = families.prompts((12, 30, 7, 21, 16))
SCHEMA = {
    "type": "object",
    "properties": {
        "quick": {"enum": ["the lazy dog", "jumps over", "a brown fox"]},
        "many": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 4},
        "open": {"type": "boolean"},
        "word": {"type": "string", "maxLength": 6},
    },
    "required": ["quick", "many", "open", "word"],
    "additionalProperties": False,
}
GRAMMARS = [
    grammar.json_schema(SCHEMA),
    None,
    grammar.regex("([a-z]{2,6} ){3,9}[a-z]{1,6}[.]"),
    grammar.lark('start: ("do" | "re" | "mi") (" " ("fa" | "so" | "la"))+ "!"'),
    None,
]


def requests(**options: Any) -> list[Request]:
    """Three rows with a grammar, two without, each with a seed of its own."""
    shared: dict[str, Any] = {"max_tokens": LIMIT, "temperature": 1.2, **options}
    return [
        Request(prompt, grammar=text, seed=i, **shared)
        for i, (prompt, text) in enumerate(zip(PROMPTS, GRAMMARS, strict=True))
    ]


async def told(engine: motet.Engine, asked: list[Request]) -> list[tuple[Any, ...]]:
    """Each row's text, how it ended, its tokens' number and log-probabilities."""
    texts, ends = [""] * len(asked), [()] * len(asked)
    likely: list[list[motet.Logprob]] = [[] for _ in asked]
    with trio.fail_after(60):
        async with engine.open_rows(asked) as stream:
            async for event in stream:
                match event:
                    case motet.Text():
                        texts[event.index] += event.text
                        likely[event.index] += event.logprobs
                    case motet.Reasoning():
                        texts[event.index] += event.text
                    case motet.Finished():
                        ends[event.index] = (event.reason, event.usage.completion_tokens)
                    case motet.Failed():
                        ends[event.index] = (event.code, event.message)
    return [(text, *end, lps) for text, end, lps in zip(texts, ends, likely, strict=True)]


@pytest.fixture(params=["at once", "behind"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tokens are read when they are drawn, as on a CPU, or when the next forward is queued behind them."""
    monkeypatch.setattr(groups, "_on_cpu", lambda: request.param == "at once")
    return str(request.param)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"presence_penalty": 0.8, "repetition_penalty": 1.3, "logit_bias": {70: 3.0}},
    "filters": {"top_p": 0.8, "top_k": 40, "xtc_probability": 0.5},
    "logprobs": {"logprobs": 2},
}


@pytest.mark.parametrize(
    "family, options",
    [
        *(("llama", options) for options in OPTIONS),
        ("mamba", "plain"),
        pytest.param("llama_swa", "plain", marks=pytest.mark.slow),
        pytest.param("qwen3_5", "plain", marks=pytest.mark.slow),
    ],
)
async def test_each_row_of_a_mixed_batch_is_what_it_is_alone(family: str, options: str, order: str) -> None:
    """Alone a row takes what its grammar forces at once, in the batch token by token."""
    async with open_system(families.loader(family), Settings(prompt_cache_bytes=0)) as engine:
        asked = requests(**OPTIONS[options])
        alone = [(await told(engine, [one]))[0] for one in asked]
        assert await told(engine, asked) == alone
    value = json.loads(alone[0][0])
    assert set(value) == {"quick", "many", "open", "word"}
    assert [row[1] for row, text in zip(alone, GRAMMARS, strict=True) if text] == ["stop"] * 3


async def test_a_lone_row_takes_what_is_forced_in_one_forward(order: str) -> None:
    forwards: list[int] = []

    def observe(rows: tuple[int, ...], logits: mx.array) -> None:
        forwards.append(len(rows))

    settings = Settings(prompt_cache_bytes=0)
    async with open_system(families.loader(), settings, observe=observe) as engine:
        (row,) = await told(engine, requests()[:1])
    assert row[1] == "stop" and len(forwards) < 0.7 * row[2]


async def test_a_row_ends_with_its_grammar_and_no_forward_more() -> None:
    forwards: list[int] = []
    observe: Callable[..., None] = lambda rows, logits: forwards.append(len(rows))  # noqa: E731
    settings = Settings(prompt_cache_bytes=0)
    async with open_system(families.loader(), settings, observe=observe) as engine:
        asked = Request(PROMPTS[0], grammar=grammar.regex("[a-z]{4}"), temperature=1, seed=1, max_tokens=50)
        (row,) = await told(engine, [asked])
    assert len(row[0]) == 4 and row[1] == "stop" and row[2] <= 4
    assert len(forwards) == row[2]


async def test_a_text_that_need_not_end_ends_with_the_models_end_or_the_limit() -> None:
    async with open_system(families.loader(), Settings(prompt_cache_bytes=0)) as engine:
        asked = Request(PROMPTS[0], grammar=grammar.regex("[a-z]+"), max_tokens=20, logit_bias={0: 100})
        (row,) = await told(engine, [asked])
        assert row[1] == "stop" and row[0].isalpha()  # the end is the likeliest as soon as it is allowed
        asked = Request(PROMPTS[0], grammar=grammar.regex("[a-z]+"), max_tokens=20, logit_bias={0: -100})
        (row,) = await told(engine, [asked])
        assert row[1:3] == ("length", 20) and row[0].isalpha()


async def test_a_steps_fault_costs_no_row_a_token(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it falls into what a grammar forces: the matcher is brought to where the row was."""
    breaking = Breaking(monkeypatch)
    monkeypatch.setattr(decoding, "FAULT_WINDOW", -1.0)  # each fault as if it were the only one
    async with open_system(families.loader(), Settings(prompt_cache_bytes=0)) as engine:
        want = await told(engine, requests())
        lone = await told(engine, requests()[:1])
        for at in (1, 2, 3, 5, 8, 13, 21):
            breaking.steps, breaking.fails_at = 0, at
            assert await told(engine, requests()) == want
            breaking.steps, breaking.fails_at = 0, at
            assert await told(engine, requests()[:1]) == lone
        assert breaking.faults >= 12 and recovered(engine) > breaking.faults


GUILTY = grammar.lark('start: ("do" | "re") (" " ("fa" | "so" | "la")){30} "!"')


@pytest.mark.parametrize("at", [0, 1, 20])
async def test_a_constraints_fault_ends_its_row_alone(
    at: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the fill of its first mask, of its second, or of a late one."""
    fills: list[Any] = []
    fill, begin = constraints._fill, Grammars._begin

    def counted(matcher: Any) -> None:
        fills.append(matcher)
        if len(fills) == at + 1:
            raise RuntimeError("injected")

    def marked(grammars: Grammars, text: str, generated: tuple[int, ...]) -> Any:
        filled = begin(grammars, text, generated)
        if text == GUILTY:
            guilty.append(filled.matcher)
            counted(filled.matcher)
        return filled

    def filling(matcher: Any) -> Any:
        if any(matcher is its for its in guilty):
            counted(matcher)
        return fill(matcher)

    guilty: list[Any] = []
    monkeypatch.setattr(Grammars, "_begin", marked)
    monkeypatch.setattr(constraints, "_fill", filling)
    async with open_system(families.loader(), Settings(prompt_cache_bytes=0)) as engine:
        want = await told(engine, requests())
        bad = Request(PROMPTS[1], grammar=GUILTY, max_tokens=LIMIT, temperature=1, seed=5)
        for _ in range(4):  # more than the step faults that an engine survives: none of these is one
            fills.clear()
            *good, hurt = await told(engine, [*requests(), bad])
            assert good == want
            assert hurt[1:3] == ("constraint_failed" if at else "preparation_failed", "injected")
        (lone,) = await told(engine, [bad])
        assert engine.statistics()["device"]["step_faults"] == 0
        await wait_empty(engine)
    assert lone[1] == "stop"  # its count had gone by


async def test_what_cannot_be_honoured_is_refused_before_it_is_queued() -> None:
    async with open_system(families.loader(), Settings(prompt_cache_bytes=0)) as engine:
        for bad, param in [
            (grammar.json_schema({"not": {}}), "response_format"),
            (grammar.regex("("), "grammar"),
            (grammar.regex("a" * 300_000), "grammar"),
        ]:
            with pytest.raises(motet.InvalidRequest) as refused:
                async with engine.generate(PROMPTS[0], grammar=bad, grammar_param=param):
                    pass
            assert refused.value.param == param
        assert engine.statistics()["batch"]["submitted_rows"] == 0


def test_decode_tells_a_rows_own_fault_behind_its_tokens_and_lets_it_go() -> None:
    bench = Bench()
    bench.join(1, 2)
    bench.hear(stepped(RowTokens(1, (11,), error="too deep"), RowTokens(2, (21,))))
    assert bench.emitters[1][1:] == [Tokens((11,), None), Failed("constraint_failed", "too deep")]
    assert bench.admission == [Released(1)] and bench.store == [] and bench.gauges.active_rows == 1
    bench.join(3)
    bench.hear(Stop(3), stepped(RowTokens(3, (), error="too deep")))
    assert bench.emitters[3][1:] == []  # it was leaving anyway


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


async def test_the_forms_of_a_text_over_http() -> None:
    async with served() as server, server.client() as client:
        body = chat("tell me", max_tokens=200, response_format=FORMAT)
        streamed_text = await streamed(client, CHAT, body)
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]
        assert set(json.loads(streamed_text.text)) == set(SCHEMA["properties"])
        assert whole["message"]["content"] == streamed_text.text
        assert whole["finish_reason"] == streamed_text.finish == "stop"
        body = {
            "model": "tiny",
            "prompt": "abc",
            "max_tokens": 50,
            "grammar": {"type": "regex", "value": "[0-9]{6}"},
        }
        answer = (await client.post(TEXT, json=body)).json()["choices"][0]
        assert answer["text"].isdigit() and len(answer["text"]) == 6 and answer["finish_reason"] == "stop"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
        "response_format",
        '"not"',
    ),
    ({"grammar": {"type": "regex", "value": "(?=a)"}}, "grammar", "look-around"),
    ({"grammar": {"type": "lark", "value": "start: nothing"}}, "grammar", "nothing"),
    ({"grammar": {"type": "regex", "value": "a" * 300_000}}, "grammar", "262144"),
    ({"grammar": {"type": "peg", "value": "a"}}, "grammar.type", "lark"),
    ({"grammar": "start: "}, "grammar", "object"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
]


async def test_what_cannot_be_honoured_is_a_400_with_the_reason() -> None:
    async with served() as server, server.client() as client:
        for fields, param, reason in REFUSED:
            answer = await client.post(CHAT, json=chat("x", **fields))
            assert answer.status_code == 400, fields
            error = answer.json()["error"]
            assert error["param"] == param and reason in error["message"], error


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("must", [True, "now", "weather"])
async def test_calls_that_must_be_made_are_made_behind_the_thinking(
    thinks: bool, must: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tool_tokenizer()
    wide = dict(families.CONFIGS["llama"], vocab_size=len(tokenizer._tokenizer) + 4)
    monkeypatch.setitem(families.CONFIGS, "wide", wide)
    (think_end,) = tokenizer.think_end_tokens
    asked = Request(
        ({"role": "user", "content": "x"},),
        tools=tuple(TOOLS),
        must_call=must,
        template={"enable_thinking": thinks},
        temperature=1,
        seed=4,
        max_tokens=400,
        logit_bias={think_end: 4.0, 0: 9.0},  # neither thinking nor calls go on for ever
    )
    load = families.loader("wide")
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    thought, said, end = "", "", None
    async with open_system(lambda: (load()[0], tokenizer), Settings(prompt_cache_bytes=0)) as engine:
        async with engine.open_rows([asked]) as stream:
            async for event in stream:
                match event:
                    case motet.Reasoning():
                        thought += event.text
                    case motet.Text():
                        said += event.text
                    case motet.ToolCall():
                        names[event.call] = names.get(event.call) or event.name
                        arguments[event.call] = arguments.get(event.call, "") + event.arguments
                    case _:
                        end = event
    assert isinstance(end, motet.Finished) and end.reason == "tool_calls" and not said.strip()
    assert bool(thought) == thinks
    assert names and set(names.values()) <= ({must} if isinstance(must, str) else {"now", "weather"})
    assert must is True or len(names) == 1
    for number, name in names.items():
        assert set(json.loads(arguments[number])) == ({"city", "days"} if name == "weather" else set())
