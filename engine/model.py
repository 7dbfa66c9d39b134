"""The loaded model, and what the rest of the house needs to know of it."""

import gc
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import make_prompt_cache

from motet.engine.defaults import SamplingDefaults, sampling_defaults


@attrs.frozen
class ModelFacts:
    """Facts of a model, as plain values."""

    name: str
    vocabulary: int
    context: int | None
    """Most tokens of a row, prompt and completion together; None if the model names no limit."""
    weight_bytes: int
    dtype: str
    heads: int = 0
    """Attention heads; 0 if the configuration does not say."""
    sampling: SamplingDefaults = attrs.Factory(SamplingDefaults)
    """How the model is sampled where a request says nothing."""


class Model:
    """An mlx-lm model. Built, run and freed on one thread: its arrays are bound to it."""

    def __init__(
        self,
        module: Module,
        config: dict[str, Any],
        name: str,
        sampling: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
    ) -> None:
        self.module = module
        self.config = config
        self.facts = attrs.evolve(_facts(module, config, name), sampling=sampling)

    def caches(self) -> list[Any]:
        """Empty caches of one row."""
        return list(make_prompt_cache(self.module))


def load(name: str) -> tuple[Model, Any]:
    """Load an mlx-lm directory or hub model.

    Returns:
        The model, and mlx-lm's TokenizerWrapper (which holds no arrays).

    Raises:
        Exception: whatever mlx-lm raises for a model that it cannot find or load.
    """
    module, tokenizer, config = mlx_lm_utils.load(name, return_config=True)
    directory = Path(name)
    if not directory.exists():
        directory = mlx_lm_utils.hf_repo_to_path(name)
    return Model(module, config, name, sampling_defaults(directory)), tokenizer


def _facts(module: Module, config: dict[str, Any], name: str) -> ModelFacts:
    text = config.get("text_config") or config
    leaves: Any = tree_flatten(module.parameters())  # type: ignore[no-untyped-call]
    arrays = [array for _, array in leaves]
    floating = [a.dtype for a in arrays if mx.issubdtype(a.dtype, mx.floating)]
    context = text.get("max_position_embeddings")
    heads = text.get("num_attention_heads")
    return ModelFacts(
        name=name,
        vocabulary=int(text.get("vocab_size") or config["vocab_size"]),
        context=int(context) if context else None,
        weight_bytes=sum(array.nbytes for array in arrays),
        dtype=str(floating[0]).rpartition(".")[2] if floating else "unknown",
        heads=heads if isinstance(heads, int) else 0,
    )


def check_device() -> None:
    """Whether the device computes at all, after a fault.

    Raises:
        Exception: it does not: nothing that is done next could succeed.
    """
    total: Any = mx.sum(mx.ones(64)).item()
    if total != 64:
        raise RuntimeError("the device gives wrong results")


def release_device() -> None:
    """The device thread's last act, after the last reference to the model and its rows is gone.

    Without ``clear_streams`` the process can crash when it exits.
    """
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    mx.clear_streams()
