"""Two-layer random models of every family, and rows to try them on."""

from random import Random
from typing import Any

import torch
import transformers

from msft.engine.attention import NAME
from msft.engine.model.loading import LoadedModel
from msft.example import Encoded

VOCABULARY = 97
END = 0
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": 1,
}
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "eos_token_id": END,
    "bos_token_id": END,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
MAMBA: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "state_size": 4,
    "num_hidden_layers": 2,
    "eos_token_id": END,
    "bos_token_id": END,
    "pad_token_id": 1,
}
FALCON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "eos_token_id": END,
    "bos_token_id": END,
}
LINEAR: dict[str, Any] = {
    **SHAPE,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
HYBRID: dict[str, Any] = {
    **SHAPE,
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SHAPE),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", SHAPE),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**SHAPE, "head_dim": 8}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", SHAPE),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SHAPE, "sliding_window": 8}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**SHAPE, "head_dim": 8}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SHAPE, "head_dim": 8, "sliding_window": 8}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
"""Families that the fast engine suits."""

OTHER_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", LINEAR),
    "mamba": ("MambaConfig", "MambaForCausalLM", MAMBA),
    "falcon": ("FalconConfig", "FalconForCausalLM", FALCON),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", HYBRID),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **{key: value for key, value in HYBRID.items() if key != "mamba_d_ssm"},
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 8,
            "num_local_experts": 0,
            "shared_intermediate_size": 32,
        },
    ),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {**SHAPE, "layer_types": ["conv", "full_attention"]}),
}
"""Families with layers that mix tokens in their own way; the simple engine runs them."""

EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}
INDEX: dict[str, Any] = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 64}
RARE_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "phimoe": (
        "PhimoeConfig",
        "PhimoeForCausalLM",
        {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64},
    ),
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {
            **SHAPE,
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
            "attention_chunk_size": 64,
        },
    ),
    "longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **SHAPE,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "deepseek_v32": (
        "DeepseekV32Config",
        "DeepseekV32ForCausalLM",
        {
            **SHAPE,
            **LATENT,
            **EXPERTS,
            **INDEX,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "deepseek_v4": (
        "DeepseekV4Config",
        "DeepseekV4ForCausalLM",
        {
            **SHAPE,
            **EXPERTS,
            **INDEX,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "partial_rotary_factor": 0.25,
            "q_lora_rank": 16,
            "o_lora_rank": 8,
            "o_groups": 2,
            "moe_intermediate_size": 16,
            "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
            "mlp_layer_types": ["hash_moe", "moe"],
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            "hc_sinkhorn_iters": 2,
        },
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {
            **SHAPE,
            "intermediate_size": [64, 32],
            "head_dim": 8,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": [0.5, 0.0],
            "laurel_rank": 4,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "sliding_window": 64,
        },
    ),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **SHAPE,
            "head_dim": 8,
            "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_kv_shared_layers": 0,
            "sliding_window": 64,
        },
    ),
    "ctrl": (
        "CTRLConfig",
        "CTRLLMHeadModel",
        {"vocab_size": VOCABULARY, "n_positions": 256, "n_embd": 32, "dff": 64}
        | {"n_layer": 2, "n_head": 4, "eos_token_id": END},
    ),
    "reformer": (
        "ReformerConfig",
        "ReformerModelWithLMHead",
        {"vocab_size": VOCABULARY, "attn_layers": ["local", "lsh"], "hidden_size": 32}
        | {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16], "is_decoder": True}
        | {"attention_head_size": 8, "feed_forward_size": 64, "num_buckets": 2},
    ),
}
"""Families that were refused or accepted wrongly; short rows do not outgrow their windows."""


def model_of(family: str, sharpen: float = 4.0) -> Any:
    """The same random model every time; sharpened, so that its choices are clear."""
    built = own_model_of(family)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(sharpen)
    built.set_attn_implementation(NAME)
    return built


def own_model_of(family: str, **changes: Any) -> Any:
    """The same as transformers has it, with its own attention."""
    every = {**FAMILIES, **OTHER_FAMILIES, **RARE_FAMILIES}
    config, model, options = every[family]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**{**options, **changes}))


class EndToken:
    """All that an engine asks of a tokenizer as it is made."""

    eos_token_id = END


def loaded(model: Any) -> LoadedModel:
    """A model as an engine takes it."""
    return LoadedModel(model, EndToken(), "random")


def rows_of(count: int, seed: int = 0, longest: int = 30) -> list[Encoded]:
    """Random rows whose second half is the answer."""
    random = Random(seed)
    lengths = [random.randrange(4, longest) for _ in range(count)]
    return [
        Encoded(
            tuple(random.randrange(2, VOCABULARY) for _ in range(length)),
            tuple(index >= length // 2 for index in range(length)),
        )
        for length in lengths
    ]
