"""How a model wants to be sampled if nobody says: its ``generation_config.json``.

The fields are transformers' (https://huggingface.co/docs/transformers/main_classes/text_generation). mlx-lm
reads nothing of that file but the end tokens.
"""

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class SamplingDefaults:
    """What is used where a request says nothing; as it stands, greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


_VALID: dict[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= 2,
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: 0 <= value < 1 << 31 and value == int(value),
    "min_p": lambda value: 0 <= value <= 1,
    "repetition_penalty": lambda value: value > 0,
}
_DRAWING = ("temperature", "top_p", "top_k", "min_p")


def sampling_defaults(directory: Path) -> SamplingDefaults:
    """The defaults of the model in a directory.

    ``do_sample`` false makes it greedy whatever the other fields say, though a repetition penalty stays; true
    without a temperature is temperature 1, as in transformers. What makes no sense is warned of and not used.
    """
    try:
        config = json.loads((directory / "generation_config.json").read_text())
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, ValueError) as error:
        warnings.warn(f"generation_config.json cannot be read: {error}", stacklevel=2)
        return SamplingDefaults()
    return from_config(config if isinstance(config, dict) else {})


def from_config(config: dict[str, Any]) -> SamplingDefaults:
    """The defaults in a ``generation_config.json``'s object; see ``sampling_defaults``."""
    chosen = {name: config[name] for name in _VALID if config.get(name) is not None}
    if config.get("do_sample") is False:
        chosen = {name: value for name, value in chosen.items() if name not in _DRAWING}
    elif config.get("do_sample"):
        chosen.setdefault("temperature", 1.0)
    for name in [name for name, value in chosen.items() if not _makes_sense(name, value)]:
        warnings.warn(f"generation_config.json: {name} {chosen.pop(name)!r} is not used", stacklevel=2)
    if "top_k" in chosen:
        chosen["top_k"] = int(chosen["top_k"])
    return SamplingDefaults(**chosen)


def _makes_sense(name: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and _VALID[name](value)
