"""What a request may ask of the sampling, and how much at once.

The HTTP routes refuse wrong values earlier, by their bodies' types.
"""

import math
from collections.abc import Mapping, Sequence

from motet.actors.intake import InvalidRequest
from motet.actors.request import MOST_ROWS, Request

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, math.inf),
    "top_p": (0, 1),
    "top_k": (0, 1 << 31),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 0.5),
    "repetition_penalty": (0.01, 100),
    "repetition_context": (0, 1 << 31),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "logprobs": (0, 20),
    "n": (1, MOST_ROWS),
}
_MOST_BIAS = 100.0


def check_sampling(request: Request, vocabulary: int) -> None:
    """Refuse what cannot be sampled by.

    Args:
        request: what is asked for.
        vocabulary: token ids are below this.

    Raises:
        InvalidRequest: a value is out of its range; ``param`` names the field.
    """
    for name, (low, high) in _RANGES.items():
        value = getattr(request, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise InvalidRequest(f"'{name}' must be from {low:g} to {high:g}", name, "invalid_value")
    for token, bias in request.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"'logit_bias': token {token} is outside the vocabulary of {vocabulary}",
                "logit_bias",
                "invalid_value",
            )
        if not -_MOST_BIAS <= bias <= _MOST_BIAS:
            raise InvalidRequest(
                "'logit_bias': values must be from -100 to 100", "logit_bias", "invalid_value"
            )


def check_rows(requests: Sequence[Request], limit: int) -> None:
    """Refuse what would find the queue full however often it came again.

    Args:
        requests: those of one call.
        limit: rows that may wait.

    Raises:
        InvalidRequest: they are more rows than that.
    """
    rows = sum(request.n for request in requests)
    if rows > limit:
        first = requests[0]
        param = "n" if first.n > 1 else first.param
        asked = f"{len(requests)} prompts with {first.n} answers each are {rows} rows"
        raise InvalidRequest(f"'{param}': {asked}, of at most {limit} that can wait", param, "invalid_value")
