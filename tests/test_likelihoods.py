"""Log-probabilities out of a running engine, against the logits that were seen, and over HTTP."""

import json
from collections import defaultdict
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import trio

import families
import motet
from motet.actors.system import Settings, open_system
from motet.engine.group import Group
from motet.engine.vocabulary import Vocabulary
from motet.http.logprobs import TextLogprobs
from served import chat, served, text

TOKENIZER = families.tokenizer()
_VOCABULARY = Vocabulary(TOKENIZER)
IDS = {_VOCABULARY.data(token): token for token in range(families.VOCABULARY)}
PROMPTS = families.prompts((12, 5, 30, 17))
LIMIT = 24
(START,) = TOKENIZER.encode("<|start|>")  # a special token, which would have no entry
BIAS = {40: 3.0, 41: -4.0, START: -100.0}


def requests() -> list[motet.Request]:
    common: dict[str, Any] = {"temperature": 1.2, "repetition_penalty": 1.3, "logit_bias": BIAS}
    return [
        motet.Request(PROMPTS[0], max_tokens=LIMIT, logprobs=4, logit_bias={START: -100.0}),
        motet.Request(PROMPTS[1], max_tokens=LIMIT - 9, **common, seed=1, logprobs=20, top_k=3),
        motet.Request(PROMPTS[2], max_tokens=LIMIT, temperature=1, seed=2),
        motet.Request(PROMPTS[3], max_tokens=LIMIT, **common, seed=3, logprobs=0, presence_penalty=0.5),
    ]


async def entries(engine: motet.Engine) -> dict[int, list[motet.Logprob]]:
    """What each row is told; all its text has its entries."""
    told: dict[int, list[motet.Logprob]] = defaultdict(list)
    texts: dict[int, str] = defaultdict(str)
    with trio.fail_after(60):
        async with engine.open_rows(requests()) as stream:
            async for event in stream:
                if isinstance(event, motet.Text):
                    told[event.index] += event.logprobs
                    texts[event.index] += event.text
                elif isinstance(event, motet.Finished):
                    ended = event.reason == "stop"
                    asks = requests()[event.index].logprobs is not None
                    counted = event.usage.completion_tokens - ended
                    assert len(told[event.index]) == (counted if asks else 0)
                else:
                    assert isinstance(event, motet.Accepted), event
    for index, its in told.items():
        if its:
            said = b"".join(one.chosen.data for one in its).decode(errors="replace")
            assert said.startswith(texts[index])
    return told


def expected(request: motet.Request, logits: mx.array, tokens: list[int]) -> Any:
    """The log-softmax of what bias and penalties make of the logits, in numpy."""
    its = np.array(logits, dtype=np.float64)
    for token, bias in request.logit_bias.items():
        its[token] += bias
    penalty = request.repetition_penalty or 1
    assert isinstance(request.prompt, list)
    for token in {*[*request.prompt, *tokens][-20:]}:
        its[token] *= penalty if its[token] < 0 else 1 / penalty
    for token in set(tokens):
        its[token] -= request.presence_penalty
    return its - np.log(np.exp(its).sum())


@pytest.mark.parametrize("family", ["llama", "llama_swa", "qwen3_5"])
async def test_they_are_those_of_the_processed_logits_at_every_token(family: str) -> None:
    """First tokens and all others, while rows leave and one does not ask."""
    seen: dict[int, list[mx.array]] = defaultdict(list)

    def observe(rows: tuple[int, ...], logits: mx.array) -> None:
        for i, row in enumerate(rows):
            seen[row].append(logits[i].astype(mx.float32))
            mx.eval(seen[row][-1])

    async with open_system(families.loader(family), Settings(), observe=observe) as engine:
        told = await entries(engine)
    first = min(seen)
    checked = 0
    for index, request in enumerate(requests()):
        tokens: list[int] = []
        for logits, one in zip(seen[first + index], told[index], strict=False):
            want = expected(request, logits, tokens)
            tokens.append(IDS[one.chosen.data])
            assert abs(one.chosen.logprob - want[tokens[-1]]) < 1e-4
            best = np.sort(want)[::-1][: request.logprobs]
            np.testing.assert_allclose([likely.logprob for likely in one.top], best, atol=1e-4)
            assert all(abs(want[IDS[each.data]] - each.logprob) < 1e-4 for each in one.top)
            checked += 1
    assert checked > 2 * LIMIT


async def test_they_go_on_behind_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token has its own, also those that are drawn alone past the fault."""
    steps, own = 0, Group.step

    def breaking(group: Group, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 9:
            raise RuntimeError("injected")
        return own(group, *arguments)

    async with open_system(families.loader("llama"), Settings(prompt_cache_bytes=0)) as engine:
        want = await entries(engine)
        monkeypatch.setattr(Group, "step", breaking)
        got = await entries(engine)
        assert engine.statistics()["device"]["recovered_rows"] == 4
    for index, its in want.items():
        assert [one.chosen.data for one in got[index]] == [one.chosen.data for one in its]
        values = [[one.chosen.logprob for one in some] for some in (got[index], its)]
        np.testing.assert_allclose(*values, atol=1e-4)


def test_offsets_and_names_of_tokens_that_are_parts_of_characters() -> None:
    def one(data: bytes) -> motet.Logprob:
        return motet.Logprob(motet.Likely("?", data, -1.0), ())

    writer = TextLogprobs()
    first = writer.more("aé", [one(b"a"), one(b"\xc3"), one(b"\xa9")])
    second = writer.more(" b", [one(b" b")])
    assert first and first["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert first["text_offset"] == [0, 1, 1] and second and second["text_offset"] == [2]
    assert writer.more("c", []) is None
    assert writer.whole and writer.whole["text_offset"] == [0, 1, 1, 2]


# --- over HTTP --------------------------------------------------------------------------------


async def streamed_choices(client: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.post(path, json=body | {"stream": True})
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


# Bytes that are no characters would be U+FFFD in the text.
LETTERS = {str(token): -100 for data, token in IDS.items() if not data.isascii()}


async def test_a_chat_has_them_in_openais_shape_streamed_or_not() -> None:
    body = chat("hello", max_tokens=30, logprobs=True, top_logprobs=3, logit_bias=LETTERS)
    async with served() as server, server.client() as client:
        (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
        chunks = await streamed_choices(client, "/v1/chat/completions", body)
        (plain,) = (await client.post("/v1/chat/completions", json=chat("hello"))).json()["choices"]
    content = choice["logprobs"]["content"]
    assert set(content[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert all(len(one["top_logprobs"]) == 3 for one in content)
    assert all(set(likely) == {"token", "logprob", "bytes"} for likely in content[0]["top_logprobs"])
    assert all(one["top_logprobs"][0]["logprob"] >= one["logprob"] for one in content)
    data = bytes(byte for one in content for byte in one["bytes"])
    assert data.decode() == choice["message"]["content"]
    told = [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"]["content"]]
    assert [one["bytes"] for one in told] == [one["bytes"] for one in content]
    assert plain["logprobs"] is None


async def test_a_completion_has_them_in_openais_shape_streamed_or_not() -> None:
    body = text("the quick", max_tokens=30, logprobs=2, temperature=1, seed=3, logit_bias=LETTERS)
    async with served() as server, server.client() as client:
        (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
        chunks = await streamed_choices(client, "/v1/completions", body)
    its = choice["logprobs"]
    assert set(its) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(values) for values in its.values()}) == 1
    for token, logprob, top in zip(its["tokens"], its["token_logprobs"], its["top_logprobs"], strict=True):
        assert top[token] == logprob and len(top) in {2, 3}
    assert "".join(its["tokens"]) == choice["text"]
    for token, offset in zip(its["tokens"], its["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    told = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    for field in ("tokens", "text_offset"):
        assert [value for one in told for value in one[field]] == its[field]


async def test_what_cannot_be_sampled_by_is_refused_by_name() -> None:
    outside = str(families.VOCABULARY)
    async with served() as server, server.client() as client:
        for more, param in [
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logit_bias": {outside: 1}}, "logit_bias"),
            ({"logit_bias": {"5": 101}}, "logit_bias.5"),
            ({"presence_penalty": 2.1}, "presence_penalty"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ]:
            answer = await client.post("/v1/chat/completions", json=chat("x", max_tokens=2, **more))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {-1: 1}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
    ],
)
async def test_the_library_refuses_it_too(more: dict[str, Any], param: str) -> None:
    async with open_system(families.loader(), Settings()) as engine:
        with pytest.raises(motet.InvalidRequest) as refused:
            async with engine.generate("x", **more):
                pass
    assert refused.value.param == param


async def test_extreme_values_still_give_text() -> None:
    """What a request may ask for can be as near to nothing as JSON can say it."""
    async with open_system(families.loader(), Settings()) as engine:
        want = ""
        for temperature, more in [(0, {}), (5e-324, {}), (1e-7, {}), (1, {"top_p": 5e-324})]:
            said = ""
            async with engine.generate(PROMPTS[0], max_tokens=8, temperature=temperature, **more) as stream:
                async for event in stream:
                    said += event.text if isinstance(event, motet.Text) else ""
            want = want or said
            assert said == want
