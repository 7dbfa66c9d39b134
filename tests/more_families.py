"""Tiny configurations of every other mlx-lm model family, and why the remaining ones have none.

``MORE`` is keyed by module of ``mlx_lm.models``, for the families that ``families.CONFIGS`` lacks. The
model_type of a configuration is the module's name, which for a few is not what a hub configuration says
(``mlx_lm.utils`` maps those names).
"""

# A table: one family a line, as keyword calls, in columns that a formatter would tear apart.
# ruff: noqa: C408
# fmt: off

from typing import Any

from families import CONFIGS, MLA, MOE, V

DENSE: dict[str, Any] = dict(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1e4, max_position_embeddings=4096, vocab_size=V,
    attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
)
KINDS = ["sliding_attention", "full_attention"] * 2
SLIDING: dict[str, Any] = dict(
    DENSE, num_hidden_layers=4, head_dim=32, sliding_window=16, layer_types=KINDS
)
EXPERTS: dict[str, Any] = dict(
    num_experts=4, num_experts_per_tok=2, num_shared_experts=1, moe_intermediate_size=64,
    norm_topk_prob=True, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.5,
)
ROUTED: dict[str, Any] = dict(EXPERTS, **MOE)
LATENT: dict[str, Any] = dict(DENSE, num_key_value_heads=4, num_hidden_layers=3, **MLA)
LONG_ROPE = dict(type="longrope", short_factor=[1.0] * 8, long_factor=[1.0 + i / 4 for i in range(8)])
ALPHA_ROPE = dict(type="dynamic", factor=1.0, alpha=9.0)
SCALED_ROPE = dict(
    rope_theta=1e4, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.1,
)
ROPE_BY_KIND = dict(
    sliding_attention=dict(rope_type="default", rope_theta=1e4),
    full_attention=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5),
)
GRANITE = dict(
    DENSE, logits_scaling=2.0, attention_multiplier=0.25, embedding_multiplier=2.0, residual_multiplier=0.5
)
LONGCAT = dict(
    DENSE, **MLA, ffn_hidden_size=128, moe_topk=2, expert_ffn_hidden_size=64, n_routed_experts=4,
    zero_expert_num=2, zero_expert_type="identity", num_layers=2, routed_scaling_factor=1.5,
    attention_method="MLA", mla_scale_q_lora=True, mla_scale_kv_lora=True,
)
LFM2_MOE = dict(
    CONFIGS["lfm2"], intermediate_size=128, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2,
    norm_topk_prob=True, use_expert_bias=True, num_dense_layers=1,
)
KIMI_K3 = dict(
    LATENT, num_hidden_layers=4, mla_use_output_gate=True, attn_res_block_size=2, activation_situ_beta=1.0,
    activation_situ_linear_beta=2.0, num_experts=4, num_experts_per_token=2, num_shared_experts=1,
    moe_intermediate_size=64, first_k_dense_replace=1, routed_expert_hidden_size=32, latent_moe_use_norm=True,
    linear_attn_config=dict(
        full_attn_layers=[2, 4], kda_layers=[1, 3], head_dim=32, num_heads=4, short_conv_kernel_size=4,
        gate_lower_bound=-5.0, use_full_rank_gate=True,
    ),
)
MINIMAX_M3 = dict(
    DENSE, num_hidden_layers=4, head_dim=32, intermediate_size=64, dense_intermediate_size=128,
    shared_intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, moe_layer_freq=[0, 1, 1, 1],
    sparse_attention_config=dict(
        sparse_num_index_heads=2, sparse_index_dim=16, sparse_block_size=4, sparse_topk_blocks=2,
        sparse_local_block=1, sparse_attention_freq=[0, 1, 0, 1],
    ),
)
QWEN3_5_MOE = dict(
    CONFIGS["qwen3_5"]["text_config"], model_type="qwen3_5_moe_text", num_experts=4, num_experts_per_tok=2,
    decoder_sparse_step=1, moe_intermediate_size=64, shared_expert_intermediate_size=64, norm_topk_prob=True,
)
LLAMA = CONFIGS["llama"]
HADAMARD = [
    dict(path=f"model.layers.{i}.mlp.down_proj", embedding=False, dtype="float16", block=512)
    for i in range(4)
]
BLOCKS = [
    dict(attention=dict(n_heads_in_group=2), ffn=dict(ffn_mult=1.3)),
    dict(attention=dict(no_op=True), ffn=dict(ffn_mult=1.3)),
    dict(attention=dict(n_heads_in_group=4), ffn=dict(no_op=True)),
    dict(attention=dict(replace_with_linear=True), ffn=dict(replace_with_linear=True)),
]

_ROWS: dict[str, dict[str, Any]] = {
    "Klear": dict(DENSE, **EXPERTS, mlp_only_layers=[0], decoder_sparse_step=1, n_shared_experts=1),
    "afm7": dict(
        vocab_size=V, hidden_dim=64, num_layers=4, num_kv_reuse_layers=2, num_heads=4, num_kv_heads=2
    ),
    "afmoe": dict(SLIDING, **EXPERTS, num_dense_layers=1),
    "apertus": dict(DENSE, post_norm=False, qk_norm=True),
    "baichuan_m1": dict(
        DENSE, num_hidden_layers=4, sliding_window=16, sliding_window_layers=[1, 3], conv_window=2
    ),
    "bailing_hybrid": dict(
        LATENT, **EXPERTS, num_hidden_layers=4, head_dim=32, layer_group_size=2, group_norm_size=2
    ),
    "bailing_moe": dict(DENSE, **EXPERTS, use_qk_norm=True),
    "bailing_moe_linear": dict(
        DENSE, **EXPERTS, num_hidden_layers=4, use_qk_norm=True, layer_group_size=2, group_norm_size=2
    ),
    "bailing_moe_v3": dict(
        LATENT, **EXPERTS, num_hidden_layers=4, head_dim=32, layer_group_size=2,
        moe_shared_expert_intermediate_size=64,
    ),
    "cohere": dict(DENSE, use_qk_norm=True),
    "cohere2": dict(SLIDING, head_dim=16, sliding_window_pattern=2),
    "dbrx": dict(
        vocab_size=V, d_model=64, n_layers=2, n_heads=4,
        ffn_config=dict(ffn_hidden_size=128, moe_num_experts=4, moe_top_k=2),
        attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=1e4),
    ),
    "deepseek": dict(DENSE, **ROUTED),
    "deepseek_v2": dict(LATENT, **ROUTED, topk_method="greedy", rope_scaling=SCALED_ROPE),
    "dots1": dict(DENSE, **ROUTED),
    "ernie4_5": dict(DENSE, head_dim=32, use_bias=False),
    "ernie4_5_moe": dict(
        DENSE, use_bias=False, moe_num_experts=4, moe_k=2, moe_layer_start_index=1, moe_intermediate_size=64,
        moe_num_shared_experts=1,
    ),
    "exaone": dict(DENSE, num_layers=2, layer_norm_epsilon=1e-5),
    "exaone4": dict(SLIDING, rope_scaling=None, sliding_window_pattern="LG"),
    "exaone_moe": dict(SLIDING, **EXPERTS, is_moe_layer=[False, True, True, True]),
    "gear": dict(
        SLIDING, num_hidden_layers=3, layer_types=["sliding_attention", "conv_mixer", "full_attention"]
    ),
    "gemma": dict(DENSE, head_dim=32),
    "gemma3": dict(vocab_size=V, text_config=CONFIGS["gemma3_text"]),
    "glm": dict(DENSE, head_dim=32),
    "glm4": dict(DENSE, head_dim=32, partial_rotary_factor=0.5),
    "glm4_moe": dict(
        DENSE, **ROUTED, head_dim=32, rope_scaling=None, use_qk_norm=True, partial_rotary_factor=0.5
    ),
    "gpt2": dict(
        n_ctx=4096, n_embd=64, n_head=4, n_layer=2, n_positions=4096, layer_norm_epsilon=1e-5, vocab_size=V
    ),
    "gpt_bigcode": dict(
        n_embd=64, n_head=4, n_layer=2, n_inner=128, n_positions=4096, layer_norm_epsilon=1e-5, vocab_size=V
    ),
    "gpt_neox": dict(
        DENSE, num_key_value_heads=4, layer_norm_eps=1e-5, rotary_emb_base=10000, rotary_pct=0.25
    ),
    "gptj": dict(n_embd=64, n_head=4, n_layer=2, rotary_dim=8, vocab_size=V),
    "granite": GRANITE,
    "granitemoe": dict(GRANITE, num_local_experts=4, num_experts_per_tok=2),
    "helium": dict(DENSE, head_dim=16),
    "hunyuan": dict(
        DENSE, num_hidden_layers=4, moe_topk=2, num_experts=4, num_shared_expert=1, use_mixed_mlp_moe=True,
        use_qk_norm=True, use_cla=True, cla_share_factor=2, rope_scaling=ALPHA_ROPE,
    ),
    "hunyuan_v1_dense": dict(DENSE, rope_scaling=ALPHA_ROPE),
    "internlm2": dict(DENSE, bias=False),
    "internlm3": DENSE,
    "iquestloopcoder": dict(DENSE, head_dim=32, loop_num=2, loop_window_size=16),
    "kimi_k25": dict(text_config=CONFIGS["deepseek_v3"]),
    "kimi_k3": dict(text_config=KIMI_K3),
    "kimi_vl": dict(text_config=dict(LATENT, **ROUTED)),
    "laguna": dict(
        SLIDING, **EXPERTS, rope_parameters=ROPE_BY_KIND, shared_expert_intermediate_size=64,
        num_attention_heads_per_layer=[4, 2, 4, 2],
    ),
    "lfm2-vl": dict(text_config=CONFIGS["lfm2"]),
    "lfm2_moe": LFM2_MOE,
    "lille-130m": dict(
        block_size=4096, layer_norm_eps=1e-5, n_embd=64, n_head=4, n_kv_heads=2, n_layer=2, rope_theta=1e4,
        vocab_size=V,
    ),
    "llama4_text": dict(
        DENSE, head_dim=32, num_hidden_layers=4, intermediate_size_mlp=128, no_rope_layers=[1, 1, 1, 0],
        use_qk_norm=True,
    ),
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": dict(LONGCAT, ngram_vocab_size_ratio=2, emb_neighbor_num=3, emb_split_num=2),
    "mellum": dict(SLIDING, **EXPERTS, rope_parameters=ROPE_BY_KIND),
    "mimo": dict(DENSE, num_nextn_predict_layers=0),
    "mimo_v2_flash": dict(
        SLIDING, **ROUTED, hybrid_layer_pattern=[0, 1, 0, 1], moe_layer_freq=[0, 1, 1, 1],
        add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, sliding_window_size=16,
        topk_method="noaux_tc", scoring_func="sigmoid", layernorm_epsilon=1e-5, swa_rope_theta=1e4,
        swa_num_attention_heads=4, swa_num_key_value_heads=4, v_head_dim=16, swa_head_dim=32,
        swa_v_head_dim=16, partial_rotary_factor=0.5, attention_value_scale=0.7,
    ),
    "minicpm3": dict(LATENT, dim_model_base=32, scale_depth=1.4, scale_emb=12.0, rope_scaling=LONG_ROPE),
    "minimax": dict(
        DENSE, head_dim=32, rotary_dim=16, num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=0,
    ),
    "minimax_m3_vl": dict(text_config=MINIMAX_M3),
    "ministral3": dict(SLIDING, rope_parameters=SCALED_ROPE),
    "mistral3": dict(text_config=LLAMA),
    "mistral4": dict(LATENT, **ROUTED, rope_parameters=SCALED_ROPE),
    "mixtral": dict(DENSE, num_local_experts=4),
    "muse_glimmer": dict(SLIDING, layer_rope_theta=[1e4, 0.0] * 2, post_norm_eps=1e-5, output_multiplier=1.0),
    "nanbeige": dict(DENSE, num_loops=2),
    "nanochat": dict(DENSE),
    "nemotron": dict(DENSE, hidden_act="relu2", norm_eps=1e-5),
    "nemotron-nas": dict(DENSE, num_hidden_layers=4, block_configs=BLOCKS),
    "olmo2": DENSE,
    "olmo3": SLIDING,
    "olmo_hybrid": dict(
        DENSE, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, linear_allow_neg_eigval=True,
    ),
    "olmoe": dict(DENSE, num_experts=4, num_experts_per_tok=2),
    "openelm": dict(
        head_dim=16, num_transformer_layers=2, model_dim=64, vocab_size=V, ffn_dim_divisor=16,
        num_query_heads=[4, 4], num_kv_heads=[2, 1], ffn_multipliers=[1.0, 2.0],
    ),
    "phi": dict(DENSE, partial_rotary_factor=0.5),
    "phi3": dict(DENSE, rope_scaling=LONG_ROPE),
    "phimoe": dict(DENSE, num_local_experts=4, num_experts_per_tok=2),
    "phixtral": dict(num_vocab=V, vocab_size=V, model_dim=64, num_heads=4, num_layers=2, rotary_dim=8),
    "pixtral": dict(text_config=LLAMA),
    "plamo": dict(DENSE, n_shared_head=2),
    "plamo2": dict(
        DENSE, num_hidden_layers=4, hidden_size_per_head=32, mamba_d_state=16, mamba_num_heads=4, mamba_step=2
    ),
    "plamo3": dict(SLIDING, sliding_window_pattern=2),
    "prism_hadamard_qwen35": dict(
        schema_version=1, tensor_namespace="mlx-lm-text", modules=HADAMARD,
        quantization=dict(bits=2, group_size=128, mode="affine"),
        text_config=dict(CONFIGS["qwen3_5"]["text_config"], intermediate_size=512),
    ),
    "qwen": dict(DENSE, kv_channels=16),
    "qwen2": DENSE,
    "qwen2_moe": dict(DENSE, **EXPERTS, shared_expert_intermediate_size=64),
    "qwen2_vl": dict(text_config=dict(DENSE, model_type="qwen2")),
    "qwen3_5_moe": dict(text_config=QWEN3_5_MOE),
    "qwen3_vl": dict(text_config=CONFIGS["qwen3"]),
    "qwen3_vl_moe": dict(text_config=dict(CONFIGS["qwen3_moe"], tie_word_embeddings=False)),
    "seed_oss": dict(DENSE, head_dim=32),
    "smollm3": dict(DENSE, num_hidden_layers=4, no_rope_layer_interval=2),
    "solar_open": dict(DENSE, **ROUTED, head_dim=32, partial_rotary_factor=1.0),
    "spark2_5": dict(SLIDING, rope_parameters=ROPE_BY_KIND),
    "stablelm": dict(DENSE, use_qkv_bias=True, partial_rotary_factor=0.25, layer_norm_eps=1e-5),
    "starcoder2": DENSE,
    "step3p5": dict(
        SLIDING, num_attention_groups=2, moe_num_experts=4, moe_top_k=2, moe_intermediate_size=64,
        share_expert_dim=64, attention_other_setting=dict(num_attention_heads=8, num_attention_groups=2),
        swiglu_limits=[0.0, 0.0, 0.0, 7.0],
    ),
    "talkie": dict(DENSE, head_dim=16),
    "telechat3": DENSE,
    "youtu_llm": LATENT,
}

MORE: dict[str, dict[str, Any]] = {
    name: dict(config, model_type=name) for name, config in _ROWS.items()
}
"""Every other family that a CPU runs, by module."""

CANNOT: dict[str, str] = {
    "bitnet": "its packed ternary matmul is a Metal kernel: RuntimeError 'No Metal back-end' on a CPU",
    "muse_spark": "its attention calls Metal kernels: RuntimeError 'No Metal back-end' on a CPU",
    "olmo": "leaves the process on import without the package hf_olmo, and with it adds the mask, by now the "
    "string 'causal', to the scores: ValueError at any prompt longer than one token",
}
"""Why the families that are left are in no table."""
