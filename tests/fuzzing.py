"""Bad requests, generated: a request that would be served, with one fault."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

MESSAGES = [{"role": "user", "content": "x"}]
TURNS = [*MESSAGES, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "default_model",
        "messages": TURNS,
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 1,
        "stop": ["a"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
        "metadata": {"a": "b"},
        "priority": "interactive",
    },
    "/v1/completions": {
        "model": "default_model",
        "prompt": ["a", "b"],
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 1,
        "stop": "x",
    },
    "/v1/messages": {
        "model": "default_model",
        "max_tokens": 5,
        "messages": TURNS,
        "system": [{"type": "text", "text": "s"}],
        "temperature": 0.5,
        "top_k": 3,
        "stop_sequences": ["a"],
        "stream": True,
        "metadata": {"user_id": "u"},
    },
    "/v1/messages/count_tokens": {"model": "default_model", "messages": TURNS, "system": "s"},
    "/v1/responses": {
        "model": "default_model",
        "max_output_tokens": 5,
        "instructions": "i",
        "store": False,
        "stream": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "assistant", "content": "y"},
            {"role": "user", "content": "z"},
        ],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
    },
    "/tokenize": {"messages": TURNS},
    "/detokenize": {"tokens": [1, 2, 3]},
}
"""A request of each route that would be served."""

_WRONG: list[Any] = [
    -1,
    10**30,
    -(10**30),
    1.5,
    -0.001,
    1e300,
    True,
    "",
    "x",
    "1",
    "\x00",
    [],
    [[]],
    [None],
    {},
    {"type": "x"},
    {"a": 1},
    [{"role": "user"}],
    ["x", 5],
    [1, "x"],
]


def bad_requests(draw: random.Random) -> Iterator[tuple[str, str, bytes]]:
    """Method, path and body; without end. Some may turn out to be good all the same."""
    while True:
        path, good = draw.choice(list(GOOD.items()))
        body = json.loads(json.dumps(good))
        yield draw.choice(_FAULTS)(draw, path, body)


def _wrong_value(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    """Some value, at any depth, becomes another."""
    place, key = draw.choice(list(_places(body)))
    place[key] = draw.choice([w for w in _WRONG if w != place[key]])
    return "POST", path, json.dumps(body).encode()


def _unknown_field(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    objects = [body] + [p[k] for p, k in _places(body) if isinstance(p[k], dict) and k != "metadata"]
    draw.choice(objects)[draw.choice(["foo", "max_token", "Model", "", "$ref", "é"])] = draw.choice(_WRONG)
    return "POST", path, json.dumps(body).encode()


def _missing_field(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    needed = [n for n in ("messages", "prompt", "input", "tokens", "max_tokens") if n in body]
    if path != "/v1/messages" and "max_tokens" in needed:
        needed.remove("max_tokens")
    del body[draw.choice(needed)]
    return "POST", path, json.dumps(body).encode()


def _broken_json(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    data = bytearray(json.dumps(body).encode())
    match draw.randrange(4):
        case 0:
            del data[draw.randrange(1, len(data)) :]
        case 1:
            data[draw.randrange(len(data))] = 0xFF
        case 2:
            data += b"}"
        case _:
            data = bytearray(b"[" * draw.choice([1, 100, 100_000]))
    return "POST", path, bytes(data)


def _not_an_object(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    return "POST", path, json.dumps(draw.choice([[], [body], "x", 5, None, True])).encode()


def _wrong_model(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    return (
        "POST",
        path,
        json.dumps(body | {"model": draw.choice(["gpt-4", "claude", "../..", "\x00"])}).encode(),
    )


def _outside_the_vocabulary(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    token = draw.choice([-1, 10**6, 10**12])
    path, name = draw.choice([("/v1/completions", "prompt"), ("/detokenize", "tokens")])
    return "POST", path, json.dumps({"model": "default_model", name: [1, token]}).encode()


def _too_long(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    content = "word " * draw.choice([50_000, 200_000])
    body = {"model": "default_model", "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    return "POST", draw.choice(["/v1/chat/completions", "/v1/messages"]), json.dumps(body).encode()


def _many_wrong_items(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    items = ["x"] * draw.choice([100, 100_000])
    return "POST", "/v1/completions", json.dumps({"model": "default_model", "prompt": [1, *items]}).encode()


def _wrong_route(draw: random.Random, path: str, body: dict[str, Any]) -> tuple[str, str, bytes]:
    name = draw.choice(["x", "resp_0", "%00", "a" * 1000, "..%2f"])
    wrong = [
        *[("GET", path), ("PUT", path), ("DELETE", path), ("POST", path + "/x"), ("POST", "/v1/models")],
        *[("GET", f"/v1/models/{name}"), ("GET", f"/v1/responses/{name}"), ("GET", "/" + name)],
        *[("DELETE", f"/v1/responses/{name}"), ("POST", f"/v1/requests/{name}/cancel"), ("POST", "/health")],
    ]
    method, path = draw.choice(wrong)
    return method, path, json.dumps(body).encode() if method == "POST" else b""


_FAULTS: list[Callable[[random.Random, str, dict[str, Any]], tuple[str, str, bytes]]] = [
    *[_wrong_value] * 12,
    *[_unknown_field] * 4,
    *[_broken_json, _wrong_route] * 2,
    *[_missing_field, _not_an_object, _wrong_model, _outside_the_vocabulary, _too_long, _many_wrong_items],
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member of every object and list in a body."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in list(members):
        yield value, key
        yield from _places(member)
