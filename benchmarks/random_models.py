"""Makes llamas with random weights, for measuring what does not depend on what a model says.

Two layers, so small that an engine's own work is all that is left (its tokenizer is another model's):

    python benchmarks/random_models.py two-layer OUT --tokenizer-of MODEL_DIRECTORY

and the shapes of a 1B and an 8B model in bfloat16, with a made-up vocabulary:

    python benchmarks/random_models.py 1b OUT
    python benchmarks/random_models.py 8b OUT

No greedy text of theirs ever ends: the end tokens' logits are zero.
"""

import argparse
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import tokenizers
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

_VOCABULARY = 32000
_SPECIAL = ["<unk>", "<s>", "</s>"]

_TWO_LAYER: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
BOTH: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": _VOCABULARY,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
_SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        **BOTH,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "head_dim": 64,
    },
    "8b": {
        **BOTH,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "head_dim": 128,
    },
}


def make_two_layer(tokenizer_of: Path, target: Path) -> None:
    """A two-layer llama with the vocabulary of another."""
    config = json.loads((tokenizer_of / "config.json").read_text()) | _TWO_LAYER
    config.pop("quantization", None)
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_of / name, target / name)
    _write(config, target, mx.float32)


def make_llama(size: str, target: Path) -> None:
    """A llama of the size "1b" or "8b"."""
    make(_SHAPES[size], target, mx.bfloat16)


def make(config: dict[str, Any], target: Path, dtype: mx.Dtype) -> None:
    """A llama of this configuration, with a made-up vocabulary."""
    target.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(target)
    _write(config, target, dtype)


def _write(config: dict[str, Any], target: Path, dtype: mx.Dtype) -> None:
    """A file a layer: a large model never lies in memory whole."""
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    parts: dict[str, list[tuple[str, mx.array]]] = {}
    named: Any = tree_flatten(model.parameters())
    for name, array in named:
        words = name.split(".")
        part = f"layer-{words[2]}" if words[1] == "layers" else "rest"
        parts.setdefault(part, []).append((name, array))
    ends = config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    head = "embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    for part, arrays in parts.items():
        weights = {}
        for name, array in arrays:
            weights[name] = _random(array.shape, dtype, ends if head in name else ())
        mx.save_safetensors(str(target / f"model-{part}.safetensors"), weights, {"format": "mlx"})
    (target / "config.json").write_text(json.dumps(config, indent=1))


def _random(shape: tuple[int, ...], dtype: mx.Dtype, zero_rows: Iterable[int]) -> mx.array:
    if len(shape) == 1:  # a norm's weight
        return mx.ones(shape, dtype)
    weight = mx.random.normal(shape, dtype, scale=shape[-1] ** -0.5)
    for row in zero_rows:
        weight[row] = 0
    return weight


def _write_tokenizer(target: Path) -> None:
    """One word of five digits a token: a text tells how many tokens it is."""
    words = [*_SPECIAL, *(f"Ġ{i:05}" for i in range(len(_SPECIAL), _VOCABULARY))]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("size", choices=["two-layer", *_SHAPES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer-of", type=Path, help="a model directory, for two-layer")
    options = parser.parse_args()
    if options.size != "two-layer":
        make_llama(options.size, options.out)
    elif options.tokenizer_of is None:
        parser.error("two-layer needs --tokenizer-of")
    else:
        make_two_layer(options.tokenizer_of, options.out)


if __name__ == "__main__":
    main()
