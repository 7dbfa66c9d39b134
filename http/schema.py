"""Request bodies as pydantic models: strict types, no unknown fields, and errors that name the field.

A model is what /openapi.json shows of a body, too, its docstrings with it.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from motet import InvalidRequest

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


class Body(BaseModel):
    """What all parts of a request have in common."""

    model_config = ConfigDict(
        strict=True,  # no "1" for 1, no true for 1
        extra="forbid",  # what a client asked for must not silently not happen
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


UNSEEN = "[an image, which this model cannot see]"
"""What the model reads in an image's place."""


class Image(Body):
    """An image. Refused, unless the server is told to put a note in its place: the model reads text only."""

    @model_validator(mode="after")
    def refuse(self, info: ValidationInfo) -> Self:
        """Refuse it, unless parse() was told otherwise."""
        if not (info.context or {}).get("images"):
            raise ValueError("is an image: this server reads text only")
        return self


def finite(value: T) -> T:
    """Any JSON, if its numbers are. pydantic's parser takes NaN and 1e999 there; JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("not_finite", "has a number that is not finite")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            finite(item)
    return value


def parse(model: type[B], body: bytes, *, images: bool = False) -> B:
    """A request's body, checked.

    Args:
        model: what it must be like.
        body: JSON.
        images: whether images may stand in it.

    Raises:
        InvalidRequest: it is not JSON, or a field of it is at fault.
    """
    try:
        return model.model_validate_json(body, context={"images": images})
    except ValidationError as error:
        raise _refusal(error, body) from None


def _refusal(error: ValidationError, body: bytes) -> InvalidRequest:
    details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "json_invalid":
        what = first.get("ctx", {}).get("error", "it cannot be read")
        return InvalidRequest(f"the body is not JSON: {what}", "body", "invalid_body")
    if not first["loc"] and first["type"].startswith("model"):
        return InvalidRequest("the body must be a JSON object", "body", "invalid_body")
    return _worst(details, json.loads(body))


def _worst(details: Sequence[ErrorDetails], body: Any) -> InvalidRequest:
    """The first error, as precisely as can be said.

    A value that fits no member of a union has an error for each. A fault other than a wrong type tells what
    was meant; else those do that got furthest into it, and several that got equally far are alternatives.
    """
    paths = [tuple(_path(detail, body)) for detail in details]
    near = [i for i, path in enumerate(paths) if path[: len(paths[0])] == paths[0]]
    near = [i for i in near if not details[i]["type"].endswith("_type")] or near
    deepest = paths[max(near, key=lambda i: (len(paths[i]), paths[i]))]
    chosen = [details[i] for i in near if paths[i] == deepest]
    param = _written(deepest) or "body"
    kind = chosen[0]["type"]
    if kind == "extra_forbidden":
        return InvalidRequest(f"unknown parameter '{param}'", param, "unknown_parameter")
    if kind == "missing":
        return InvalidRequest(f"'{param}' is required", param, "missing_required_parameter")
    reasons = dict.fromkeys(map(_reason, chosen))
    musts = [reason.removeprefix("must be ") for reason in reasons if reason.startswith("must be ")]
    what = "must be " + " or ".join(musts) if musts else next(iter(reasons))
    return InvalidRequest(f"'{param}' {what}", param, "invalid_value")


def _path(detail: ErrorDetails, body: Any) -> Iterator[str | int]:
    """The error's place in the body. pydantic's has the names of union members in it as well."""
    at, steps = body, detail["loc"]
    if detail["type"] == "value_error":  # an object's; the last step tells which member of a union it is
        steps = steps[:-1]
    for step in steps:
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            continue
        yield step
    if detail["type"] == "missing":
        yield detail["loc"][-1]
    elif detail["type"].startswith("union_tag"):
        name = detail["ctx"]["discriminator"]
        yield "type" if name.endswith("()") else name.strip("'")  # a function, or a field


def _written(path: Sequence[str | int]) -> str:
    """``messages[0].content``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


_REASONS = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be a smaller integer",
    "int_type": "must be an integer",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "none_required": "must be null",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} items",
    "tuple_type": "must be a list",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "is required",
    "value_error": "{error}",
}


def _reason(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] in {"string_too_short", "too_short"} and context.get("min_length") == 1:
        return "must not be empty"
    known = _REASONS.get(detail["type"])
    return known.format(**context) if known else detail["msg"][:1].lower() + detail["msg"][1:]
