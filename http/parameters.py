"""From a request's JSON to what the engine generates: each field checked, each refusal named.

A field that is not known here is refused, unless it stands in HARMLESS: what a client asked for must not
silently not happen.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from motet import InvalidRequest, Request

T = TypeVar("T")
D = TypeVar("D")

HARMLESS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields that are accepted and have no effect on what is generated here."""

# Fields of OpenAI's API that are not served yet, each with the values that ask for nothing.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 0, 1),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "web_search_options": (None,),
}

_STOPS = 16  # stop strings at most
_PROMPTS = 64  # prompts of one completion request at most
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"} | {
    role: role for role in ("tool", "function")
}


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        InvalidRequest: it is not UTF-8, not JSON, or not an object.
    """
    try:
        value = json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error}", "body", "invalid_body") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}", "body", "invalid_body") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", "body", "invalid_body")
    return value


class Fields:
    """A request's fields, taken one by one; what nobody takes is refused at the end."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = dict(body)

    def take(self, name: str, check: Callable[[Any, str], T], default: D) -> T | D:
        """The field, checked; the default if it is absent or null."""
        value = self._left.pop(name, None)
        return default if value is None else check(value, name)

    def need(self, name: str, check: Callable[[Any, str], T]) -> T:
        """The field, checked.

        Raises:
            InvalidRequest: it is missing.
        """
        if self._left.get(name) is None:
            raise InvalidRequest(f"'{name}' is required", name, "missing_required_parameter")
        return check(self._left.pop(name), name)

    def finish(self) -> None:
        """Refuse what is left and means something."""
        for name, value in self._left.items():
            if name in HARMLESS:
                continue
            if name not in _NOT_YET:
                raise InvalidRequest(f"unknown parameter '{name}'", name, "unknown_parameter")
            if not any(value == none and type(value) is type(none) for none in _NOT_YET[name]):
                raise InvalidRequest(
                    f"'{name}' is not supported with this value", name, "unsupported_parameter"
                )


# --- checks -----------------------------------------------------------------------------------


def text(value: Any, name: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(name, "must be a string")
    return value


def flag(value: Any, name: str) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return value


def whole(low: int, high: int) -> Callable[[Any, str], int]:
    """An integer from ``low`` to ``high``."""

    def check(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, "must be an integer")
        if not low <= value <= high:
            raise _wrong(name, f"must be from {low} to {high}")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Callable[[Any, str], float]:
    """A number from ``low`` (excluded with ``above``) to ``high``."""

    def check(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(name, "must be a number")
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            raise _wrong(name, f"must be {'above' if above else 'from'} {low:g} to {high:g}")
        return float(value)

    return check


def stops(value: Any, name: str) -> tuple[str, ...]:
    """A stop string or a list of them."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise _wrong(name, "must be a string or a list of strings")
    if not all(strings):
        raise _wrong(name, "must not hold an empty string")
    if len(strings) > _STOPS:
        raise _wrong(name, f"must not hold more than {_STOPS} strings")
    return tuple(strings)


def stream_options(value: Any, name: str) -> bool:
    """Whether usage is to be streamed."""
    if not isinstance(value, dict):
        raise _wrong(name, "must be an object")
    options = dict(value)
    include = options.pop("include_usage", False)
    options.pop("include_obfuscation", None)  # ours are never padded
    if options:
        raise InvalidRequest(f"unknown option '{next(iter(options))}'", f"{name}.{next(iter(options))}")
    return flag(include, f"{name}.include_usage")


def messages(value: Any, name: str) -> list[dict[str, Any]]:
    """A chat's messages, their contents as plain text."""
    if not isinstance(value, list):
        raise _wrong(name, "must be a list")
    if not value:
        raise _wrong(name, "must not be empty")
    return [_message(message, f"{name}[{i}]") for i, message in enumerate(value)]


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, "must be an object")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _wrong(f"{name}.role", f"must be one of {', '.join(_ROLES)}")
    message = {"role": _ROLES[role], "content": _content(value.get("content"), f"{name}.content")}
    for key in ("name", "tool_call_id", "tool_calls"):
        if value.get(key) is not None:
            message[key] = value[key]
    return message


def _content(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(name, "must be a string or a list of parts")
    return "".join(_part(part, f"{name}[{i}]") for i, part in enumerate(value))


def _part(value: Any, name: str) -> str:
    if not isinstance(value, dict) or value.get("type") not in {"text", "input_text"}:
        raise _wrong(name, "must be a text part: this server reads text only")
    return text(value.get("text"), f"{name}.text")


def prompts(value: Any, name: str) -> list[str | list[int]]:
    """A completion's prompt or prompts: text or token ids."""
    if isinstance(value, str):
        return [_nonempty(value, name)]
    if not isinstance(value, list):
        raise _wrong(name, "must be a string, a list of strings, or token ids")
    if not value:
        raise _wrong(name, "must not be empty")
    if all(isinstance(item, int) for item in value):
        return [value]
    if len(value) > _PROMPTS:
        raise _wrong(name, f"must not hold more than {_PROMPTS} prompts")
    return [_one_prompt(item, f"{name}[{i}]") for i, item in enumerate(value)]


def _one_prompt(value: Any, name: str) -> str | list[int]:
    if isinstance(value, str):
        return _nonempty(value, name)
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise _wrong(name, "must be a string or token ids")
    if not value:
        raise _wrong(name, "must not be empty")
    return value


def _nonempty(value: str, name: str) -> str:
    if not value:
        raise _wrong(name, "must not be empty")
    return value


def _wrong(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{name}' {what}", name, "invalid_value")


# --- whole requests ---------------------------------------------------------------------------

_TOKENS = whole(1, 1 << 31)


def sampling(fields: Fields) -> dict[str, Any]:
    """The options of Request that both routes share."""
    # The newer name first, as in OpenAI's API.
    limit = fields.take("max_completion_tokens", _TOKENS, 0)
    limit = limit or fields.take("max_tokens", _TOKENS, 0)
    return {
        "max_tokens": limit or None,
        "temperature": fields.take("temperature", number(0, 2), 0.0),
        "top_p": fields.take("top_p", number(0, 1, above=True), 1.0),
        "top_k": fields.take("top_k", whole(0, 1 << 31), 0),
        "min_p": fields.take("min_p", number(0, 1), 0.0),
        "seed": fields.take("seed", whole(0, (1 << 63) - 1), None),
        "stop": fields.take("stop", stops, ()),
    }


def chat(fields: Fields) -> list[Request]:
    """The one row of a chat completion."""
    prompt = fields.need("messages", messages)
    return [Request(prompt, **sampling(fields), param="messages")]


def completion(fields: Fields) -> list[Request]:
    """The rows of a completion, one a prompt."""
    if fields.take("echo", flag, False):
        raise InvalidRequest("'echo' is not supported", "echo", "unsupported_parameter")
    several = fields.need("prompt", prompts)
    options = sampling(fields)
    return [Request(prompt, **options, param="prompt") for prompt in several]
