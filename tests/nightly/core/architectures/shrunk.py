"""Any architecture of transformers with random weights and few of them: its default configuration,
made small by name.

No model has code of its own here. Sizes are recognised by the names of their fields, in nested
configurations alike; ``_ODD`` holds what a rule by name cannot know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

N_LAYERS = 4
VOCABULARY = 64

_HIDDEN, _HEADS, _HEAD_DIM = 32, 4, 8
# The first pattern that matches the whole name of a field decides.
_RULES: tuple[tuple[str, int], ...] = (
    (r"type_vocab_size", 2),
    (
        r".*_vocab_size(_base)?|vocab_size(_per_layer_input)?|encoder_hash_byte_group_vocab",
        VOCABULARY,
    ),
    (
        (
            r"(num_(hidden_|encoder_|decoder_)?|n_|encoder_|decoder_|.*_encoder_|.*_decoder_)"
            r"layers?|n_layer"
        ),
        N_LAYERS,
    ),
    (r"num_blocks|depth|attention_layers", N_LAYERS),
    (r".*(num_key_value_heads|kv_n_heads|num_kv_heads|num_query_groups)", 2),
    (r"mamba_n_heads|n_mamba_heads|mamba_num_heads", 2 * _HEADS),
    (r"mamba_d_ssm", 2 * _HIDDEN),
    (r"linear_num_(key|value)_heads|index_n_heads|linear_num_heads", _HEADS),
    (r"(.*_)?(num_)?attention_heads|num_.*attention_heads|n_heads?|num_heads", _HEADS),
    (r"qk_head_dim", 2 * _HEAD_DIM),
    (r"rotary_dim|d_rel", _HEAD_DIM // 2),
    (r"(attention_)?window(_size)?", 8),
    (
        r"(.*_)?head_dim|(.*_)?d_head|dim_head|.*headdim|d_kv|kv_channels|attention_head_size",
        _HEAD_DIM,
    ),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
    (r"chunk_size|mamba_chunk_size|block_size", 8),
    (
        (
            r"(.*_)?intermediate_size(_mlp)?|.*ffn_(hidden_)?(dim|size)|d_ff|dff|dim_ff|d_inner"
            r"|feed_forward_size"
        ),
        2 * _HIDDEN,
    ),
    (r"hidden_dim|mlp_dim|ffn_dim", 2 * _HIDDEN),
    (r"(.*_)?lora_rank|.*_rank|hc_lowrank", _HEAD_DIM),
    (r"hidden_size_per_layer_input|ple_embed_dim", _HEAD_DIM),
    (
        (
            r"(.*_)?hidden_size(_global)?|d_model|n_embd|dim|emb_dim|embedding_(size|dim)"
            r"|.*_emb(ed)?_(dim|size)|d_latents"
        ),
        _HIDDEN,
    ),
    (
        (
            r"(.*_)?embed_dim|(input|output)_embedding_size|.*embed_proj_dim|lru_width"
            r"|true_hidden_size"
        ),
        _HIDDEN,
    ),
    (r".*num_experts_per_tok(en)?|moe_top_?k|moe_k|topk_group|n_group|num_expert_group", 2),
    (r"(moe_)?num_(local_)?experts|n_routed_experts|zero_expert_num", 4),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (
        (
            r"max_.*positions?(_embeddings)?|n_positions|n_ctx|max_seq_len|context_length"
            r"|model_max_length"
        ),
        64,
    ),
    (r"adapter_(in|out)_dim|adapter_input_size", _HIDDEN),
    (r"num_filters", 2),
    (r"output_channels|.*_channel|nemo_conv_channels|base_channels", 16),
    (r"num_kv_shared_layers", 2),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r"(.*_)?token_(id|index)", 2),
)
_PER_LAYER = r".*layer.*|.*types|indexer_types|activation_sparsity_pattern"
# None by default, and not derived from the other sizes by every family.
_DERIVED: Mapping[str, int] = {
    "vocab_size": VOCABULARY,
    "head_dim": _HEAD_DIM,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
_REFORMER = {"axial_pos_embds_dim": (8, 24), "axial_pos_shape": (8, 8)}
_ZAMBA = {
    "attention_hidden_size": 2 * _HIDDEN,
    "attention_head_dim": 2 * _HEAD_DIM,
    "num_key_value_heads": _HEADS,
}
_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
_ODD: Mapping[str, Mapping[str, Any]] = {
    "blenderbot": {"encoder_layers": N_LAYERS},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": {"layer_types": ["indexed_attention" for _ in range(N_LAYERS)]},
    "esm": {"pad_token_id": 1, "mask_token_id": 2},
    "esmc": {"num_key_value_heads": None},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "mamba2": {"num_heads": 2 * _HEADS},
    "mobilebert": {"intra_bottleneck_size": _HIDDEN},
    "neomme": {"head_dim": 16},
    "qwen4_exp_text": {**_INDEXER, "indexer_compress_ratio": 4},
    "reformer": _REFORMER,
    "xmod": {"default_language": "en_XX"},
    "zamba": _ZAMBA,
    "zamba2": {**_ZAMBA, "hybrid_layer_ids": [1, 3]},
}


class NotBuiltError(Exception):
    """Why an architecture does not build from a small configuration."""


def small_config(model_type: str) -> PreTrainedConfig:
    """The default configuration of a model type with every size in it small.

    Raises:
        NotBuiltError: it has no default configuration, or does not take the small sizes.
    """
    try:
        config_class = CONFIG_MAPPING[model_type]
        return config_class(**_small_fields(config_class()))
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def build(model_type: str, class_name: str) -> nn.Module:
    """A model of random weights, in evaluation mode; a decoder where its class is one by
    configuration.

    Raises:
        NotBuiltError: it does not build, with the reason.
    """
    config = small_config(model_type)
    if class_name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "GenerationDecoder")):
        config.is_decoder = True
    if class_name == "EncoderDecoderModel":
        config.decoder.is_decoder = config.decoder.add_cross_attention = True
    torch.manual_seed(0)
    try:
        model_class = getattr(transformers, class_name)
        # As AutoModelForCausalLM does for the language model inside a multimodal one.
        inner = (
            config
            if isinstance(config, model_class.config_class)
            else config.get_text_config(decoder=True)
        )
        return model_class(inner).eval()
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def _small_fields(config: PreTrainedConfig) -> dict[str, Any]:
    fields = {name: value for name, value in config.to_dict().items() if name in _settable(config)}
    small = {name: _small(name, value) for name, value in fields.items()}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            small[name] = type(value)(**_small_fields(value))
    if "kv_lora_rank" in fields:
        small["num_key_value_heads"] = _HEADS  # latent attention has as many
    default = type(config)().to_dict()
    changed = {
        name: value
        for name, value in small.items()
        if value is not None and value != default.get(name)
    }
    return {**changed, **_ODD.get(config.model_type, {})}


def _settable(config: PreTrainedConfig) -> set[str]:
    return set(config.to_dict()) - {
        "per_layer_config",
        "model_type",
        "transformers_version",
        "architectures",
        "id2label",
        "label2id",
    }


def _small(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _small(str(key), inner) for key, inner in value.items()}
    if re.fullmatch(_PER_LAYER, name) and isinstance(value, list) and len(value) > N_LAYERS:
        return _every_kind(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return next(
            (size for pattern, size in _RULES if re.fullmatch(pattern, name) and size < value),
            value,
        )
    if value is None and name in _DERIVED:
        return _DERIVED[name]
    return value


def _every_kind(per_layer: list[Any]) -> list[Any]:
    """As many as there are layers, each kind that occurs among them."""
    kinds = list(dict.fromkeys(per_layer))
    return (kinds * N_LAYERS)[:N_LAYERS]
