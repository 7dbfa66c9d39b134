"""Tiny randomly initialised models of many mlx-lm families, and a tokenizer for them.

Configurations are shaped as a hub model's config.json. Every float parameter gets a seeded value that is
not trivial (norms near 1): default initialisation leaves zeros that would hide faults.
"""

import functools
import importlib
import json
import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from motet.engine.model import Model

VOCABULARY = 512
CONTEXT = 4096

V = VOCABULARY
MOE = dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64)
MLA = dict(kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)

CONFIGS: dict[str, dict[str, Any]] = {}
CONFIGS["llama"] = dict(
    model_type="llama",
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    vocab_size=V,
)
CONFIGS["llama_swa"] = dict(
    CONFIGS["llama"],
    num_hidden_layers=4,
    sliding_window=16,
    layer_types=["sliding_attention", "full_attention"] * 2,
)
CONFIGS["qwen3"] = dict(
    model_type="qwen3",
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rms_norm_eps=1e-6,
    vocab_size=V,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    rope_theta=1e6,
)
CONFIGS["qwen3_moe"] = dict(
    CONFIGS["qwen3"],
    model_type="qwen3_moe",
    num_experts=4,
    num_experts_per_tok=2,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    norm_topk_prob=True,
)
CONFIGS["gemma2"] = dict(
    model_type="gemma2",
    hidden_size=64,
    num_hidden_layers=4,
    intermediate_size=128,
    num_attention_heads=4,
    head_dim=32,
    rms_norm_eps=1e-6,
    vocab_size=V,
    num_key_value_heads=2,
    query_pre_attn_scalar=32,
)
CONFIGS["gemma3_text"] = dict(
    model_type="gemma3_text",
    hidden_size=64,
    num_hidden_layers=6,
    intermediate_size=128,
    num_attention_heads=4,
    head_dim=32,
    vocab_size=V,
    num_key_value_heads=2,
    query_pre_attn_scalar=32,
    sliding_window=16,
    sliding_window_pattern=3,
)
CONFIGS["gemma4_text"] = dict(
    model_type="gemma4_text",
    hidden_size=64,
    num_hidden_layers=6,
    intermediate_size=128,
    num_attention_heads=4,
    head_dim=32,
    global_head_dim=64,
    vocab_size=V,
    vocab_size_per_layer_input=V,
    num_key_value_heads=1,
    num_kv_shared_layers=3,
    hidden_size_per_layer_input=16,
    sliding_window=16,
    sliding_window_pattern=3,
)
CONFIGS["gemma4"] = dict(model_type="gemma4", vocab_size=V, text_config=dict(CONFIGS["gemma4_text"]))
CONFIGS["gemma3n"] = dict(
    model_type="gemma3n",
    text_config=dict(
        model_type="gemma3n_text",
        hidden_size=64,
        num_hidden_layers=6,
        intermediate_size=128,
        num_attention_heads=4,
        head_dim=32,
        rms_norm_eps=1e-6,
        vocab_size=V,
        num_key_value_heads=2,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=V,
        sliding_window=16,
        max_position_embeddings=4096,
        rope_local_base_freq=1e4,
        rope_theta=1e6,
        final_logit_softcapping=30.0,
        layer_types=["sliding_attention", "full_attention"] * 3,
        activation_sparsity_pattern=[0.0] * 6,
        hidden_size_per_layer_input=16,
        altup_num_inputs=2,
        altup_coef_clip=120.0,
        altup_correct_scale=True,
        altup_active_idx=0,
        laurel_rank=16,
    ),
)
CONFIGS["qwen3_5"] = dict(
    model_type="qwen3_5",
    text_config=dict(
        model_type="qwen3_5_text",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=V,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        head_dim=32,
        full_attention_interval=2,
        tie_word_embeddings=True,
    ),
)
CONFIGS["qwen3_next"] = dict(
    model_type="qwen3_next",
    hidden_size=64,
    num_hidden_layers=4,
    intermediate_size=128,
    num_attention_heads=4,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
    num_experts=4,
    num_experts_per_tok=2,
    decoder_sparse_step=1,
    shared_expert_intermediate_size=64,
    mlp_only_layers=[],
    moe_intermediate_size=64,
    rms_norm_eps=1e-6,
    vocab_size=V,
    num_key_value_heads=2,
    rope_theta=1e6,
    partial_rotary_factor=0.25,
    max_position_embeddings=4096,
    head_dim=32,
    full_attention_interval=2,
    norm_topk_prob=True,
)
CONFIGS["deepseek_v32"] = dict(
    model_type="deepseek_v32",
    vocab_size=V,
    hidden_size=64,
    index_head_dim=32,
    index_n_heads=4,
    index_topk=8,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    **MOE,
    **MLA,
    first_k_dense_replace=1,
    max_position_embeddings=4096,
)
CONFIGS["glm_moe_dsa"] = dict(
    CONFIGS["deepseek_v32"],
    model_type="glm_moe_dsa",
    routed_scaling_factor=1.0,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    norm_topk_prob=True,
    n_group=1,
    topk_group=1,
    moe_layer_freq=1,
    rms_norm_eps=1e-5,
    attention_bias=False,
    rope_parameters=dict(rope_theta=1e6, rope_type="default"),
)
CONFIGS["deepseek_v3"] = dict(
    model_type="deepseek_v3",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    **MOE,
    **MLA,
    first_k_dense_replace=1,
    max_position_embeddings=4096,
    rope_theta=1e4,
)
CONFIGS["glm4_moe_lite"] = dict(
    model_type="glm4_moe_lite",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    **MOE,
    **MLA,
    first_k_dense_replace=1,
)
CONFIGS["minicpm"] = dict(
    model_type="minicpm",
    hidden_size=64,
    dim_model_base=32,
    num_hidden_layers=2,
    intermediate_size=128,
    num_attention_heads=4,
    rms_norm_eps=1e-5,
    vocab_size=V,
    num_key_value_heads=2,
    scale_depth=1.4,
    scale_emb=12.0,
)
CONFIGS["gpt_oss"] = dict(
    model_type="gpt_oss",
    num_hidden_layers=4,
    num_local_experts=4,
    num_experts_per_tok=2,
    vocab_size=V,
    hidden_size=64,
    intermediate_size=64,
    head_dim=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=16,
    rope_theta=150000,
    rope_scaling=dict(
        rope_type="yarn",
        factor=32.0,
        beta_fast=32.0,
        beta_slow=1.0,
        original_max_position_embeddings=4096,
        truncate=False,
    ),
)
CONFIGS["mamba2"] = dict(
    model_type="mamba2",
    num_heads=4,
    head_dim=32,
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    state_size=16,
    num_hidden_layers=2,
    layer_norm_epsilon=1e-5,
    conv_kernel=4,
    n_groups=1,
    use_bias=False,
    use_conv_bias=True,
    tie_word_embeddings=True,
    time_step_limit=(0.0, 1e9),
    time_step_rank="auto",
)
CONFIGS["falcon_h1"] = dict(
    model_type="falcon_h1",
    hidden_size=64,
    intermediate_size=128,
    head_dim=32,
    mamba_d_head=32,
    mamba_d_ssm=128,
    mamba_d_state=16,
    mamba_n_heads=4,
    num_attention_heads=4,
    num_hidden_layers=2,
    num_key_value_heads=2,
    vocab_size=V,
)
CONFIGS["lfm2"] = dict(
    model_type="lfm2",
    vocab_size=V,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    norm_eps=1e-5,
    conv_bias=False,
    conv_L_cache=3,
    block_dim=64,
    block_ff_dim=128,
    block_multiple_of=32,
    block_ffn_dim_multiplier=1.0,
    block_auto_adjust_ff_dim=False,
    layer_types=["conv", "full_attention"] * 2,
)
CONFIGS["llama4"] = dict(
    model_type="llama4",
    text_config=dict(
        attention_bias=False,
        attention_chunk_size=16,
        head_dim=32,
        hidden_size=64,
        interleave_moe_layer_step=1,
        intermediate_size=64,
        intermediate_size_mlp=128,
        max_position_embeddings=4096,
        model_type="llama4_text",
        num_attention_heads=4,
        num_experts_per_tok=1,
        num_hidden_layers=4,
        num_key_value_heads=2,
        num_local_experts=4,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=500000.0,
        use_qk_norm=True,
        vocab_size=V,
    ),
)
CONFIGS["deepseek_v41"] = dict(
    model_type="deepseek_v41",
    vocab_size=V,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    head_dim=32,
    q_lora_rank=32,
    qk_rope_head_dim=16,
    o_groups=2,
    o_lora_rank=16,
    moe_intermediate_size=64,
    n_routed_experts=4,
    num_experts_per_tok=2,
    sliding_window=16,
    compress_ratios=(4, 4, 4),
    kv_source_layer_ids=(0, 1, 2),
    index_source_layer_ids=(0, 1, 2),
    index_n_heads=4,
    index_head_dim=32,
    index_topk=4,
)
CONFIGS["kimi_linear"] = dict(
    model_type="kimi_linear",
    vocab_size=V,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=128,
    head_dim=32,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    model_max_length=4096,
    num_experts=4,
    moe_intermediate_size=64,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    mla_use_nope=True,
    num_experts_per_token=2,
    num_shared_experts=1,
    first_k_dense_replace=1,
    linear_attn_config=dict(
        full_attn_layers=[2, 4],
        kda_layers=[1, 3],
        head_dim=32,
        num_heads=4,
        short_conv_kernel_size=4,
    ),
)
CONFIGS["nemotron_h"] = dict(
    model_type="nemotron_h",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    max_position_embeddings=4096,
    num_attention_heads=4,
    num_key_value_heads=2,
    attention_bias=False,
    mamba_num_heads=4,
    mamba_head_dim=32,
    mamba_proj_bias=False,
    ssm_state_size=16,
    conv_kernel=4,
    n_groups=1,
    mlp_bias=False,
    layer_norm_epsilon=1e-5,
    use_bias=False,
    use_conv_bias=True,
    head_dim=32,
    hybrid_override_pattern=["M", "-", "*", "M"],
)
CONFIGS["rwkv7"] = dict(
    model_type="rwkv7",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    norm_eps=1e-5,
    head_dim=32,
    num_hidden_layers=2,
    a_low_rank_dim=16,
    v_low_rank_dim=16,
    gate_low_rank_dim=16,
    decay_low_rank_dim=16,
)

CONFIGS["mamba"] = dict(
    model_type="mamba",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=128,
    state_size=8,
    num_hidden_layers=2,
    conv_kernel=4,
    use_bias=False,
    use_conv_bias=True,
    time_step_rank=4,
)
CONFIGS["jamba"] = dict(
    model_type="jamba",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_layer_offset=1,
    attn_layer_period=2,
    expert_layer_offset=1,
    expert_layer_period=2,
    mamba_d_conv=4,
    mamba_d_state=8,
    mamba_expand=2,
    num_experts=4,
    num_experts_per_tok=2,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    vocab_size=V,
)
CONFIGS["recurrent_gemma"] = dict(
    model_type="recurrent_gemma",
    attention_bias=False,
    conv1d_width=4,
    hidden_size=64,
    intermediate_size=128,
    logits_soft_cap=30.0,
    num_attention_heads=4,
    num_hidden_layers=3,
    num_key_value_heads=1,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    attention_window_size=16,
    vocab_size=V,
    block_types=["recurrent", "recurrent", "attention"],
)
CONFIGS["granitemoehybrid"] = dict(
    model_type="granitemoehybrid",
    vocab_size=V,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=4,
    max_position_embeddings=4096,
    num_attention_heads=4,
    num_key_value_heads=2,
    attention_bias=False,
    embedding_multiplier=1.0,
    attention_multiplier=0.25,
    logits_scaling=1.0,
    residual_multiplier=1.0,
    layer_types=["mamba", "attention"] * 2,
    rms_norm_eps=1e-5,
    num_local_experts=4,
    num_experts_per_tok=2,
    shared_intermediate_size=64,
    mamba_n_heads=4,
    mamba_d_head=32,
    mamba_proj_bias=False,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_n_groups=1,
    mamba_conv_bias=True,
)
CONFIGS["phi3small"] = dict(
    model_type="phi3small",
    hidden_size=64,
    dense_attention_every_n_layers=2,
    ff_intermediate_size=128,
    gegelu_limit=20.0,
    num_hidden_layers=2,
    num_attention_heads=4,
    layer_norm_epsilon=1e-5,
    vocab_size=V,
    num_key_value_heads=2,
)

FAMILIES = tuple(CONFIGS)

ALONE = ("gemma2", "llama4", "deepseek_v41", "phi3small")
"""Served one row at a time: upstream's model code is wrong with several, or takes one position for all."""

BATCHED = tuple(family for family in FAMILIES if family not in ALONE)
"""Families that upstream decodes rightly at any B when prompts are read in chunks of real tokens."""

UNSAFE = ("phi3small",)
"""NaN or heap corruption inside MLX on a CPU, at random: never run here."""


def build(
    family: str, dtype: mx.Dtype = mx.float32, *, vocabulary: int | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """A model of a family and its configuration; the same bits each time."""
    config = json.loads(json.dumps(CONFIGS[family]))
    for holder in (config, config.get("text_config", {})):
        if vocabulary is not None and "vocab_size" in holder:
            holder["vocab_size"] = vocabulary
    mx.random.seed(0)
    architecture = importlib.import_module("mlx_lm.models." + config["model_type"])
    module = architecture.Model(architecture.ModelArgs.from_dict(config))
    key = mx.random.key(0)
    weights = []
    for i, (name, value) in enumerate(sorted(tree_flatten(module.parameters()))):
        if not mx.issubdtype(value.dtype, mx.floating):
            continue
        noise = mx.random.normal(value.shape, key=mx.random.split(key, i + 2)[-1])
        drawn = value + 0.02 * noise if value.ndim <= 1 else noise * max(0.08, value.shape[-1] ** -0.5)
        weights.append((name, drawn.astype(dtype)))
    module.load_weights(weights, strict=False)
    module.eval()
    mx.eval(module.parameters())
    return module, config


@functools.cache
def tokenizer() -> TokenizerWrapper:
    """A byte-level BPE tokenizer of the tiny vocabulary, with a chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = " ".join(a + b for a in letters for b in letters)  # enough to learn the whole vocabulary
    backend.train_from_iterator([pairs, "the quick brown fox jumps over a lazy dog " * 9], trainer)
    assert backend.get_vocab_size() == VOCABULARY
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    fast.chat_template = (
        "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    return TokenizerWrapper(fast)


Wrap = Callable[[nn.Module], nn.Module]


def loader(
    family: str = "llama", dtype: mx.Dtype = mx.float32, wrap: Wrap | None = None
) -> Callable[[], tuple[Model, Any]]:
    """What ``open_system`` takes; ``wrap`` may put something around the model."""

    def load() -> tuple[Model, Any]:
        module, config = build(family, dtype)
        (config.get("text_config") or config).setdefault("max_position_embeddings", CONTEXT)
        return Model(wrap(module) if wrap else module, config, family), tokenizer()

    return load


def prompts(lengths: tuple[int, ...], seed: int = 1) -> list[list[int]]:
    """Random prompts of these lengths, without the special tokens."""
    draw = random.Random(seed)
    return [[draw.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]
