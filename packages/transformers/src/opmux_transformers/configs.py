"""Small configurations, made in code: one for each tested family, and a shrunk one for any other."""

from collections.abc import Callable
from typing import Any

import transformers

from opmux.errors import InvalidArgument

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Large enough for groups of query heads, small enough for any machine."""

_RARE: dict[str, Any] = {
    "attn_layer_period": 2, "attn_layer_offset": 1,  # Jamba: one attention layer in this many
    "num_kv_shared_layers": 0,  # Gemma 3n: two layers have no layer of their kind to share with
    "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16,
    "first_k_dense_replace": 1, "moe_intermediate_size": 48, "n_routed_experts": 16,  # one dense layer, small experts
    "per_layer_config": None,  # Gemma 4: sizes of layers that the small model does not have
    "attention_chunk_size": 10, "no_rope_layers": [1, 0], "intermediate_size_mlp": 96,  # Llama 4
    "ffn_dim": 96, "word_embed_proj_dim": 64,  # OPT
    "num_kv_heads": 4,  # Falcon
    "rotary_dim": 8,  # GPT-J, CodeGen: of a head
    "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2,  # ModernBERT
}  # fmt: skip
"""Sizes that only some configurations have, and the values that replace them if they are set."""

_WITH_ENCODER: dict[str, Any] = {
    "encoder_layers": 2, "decoder_layers": 2, "num_layers": 2, "num_decoder_layers": 2, "num_encoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_heads": 4,
    "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "d_ff": 96, "d_kv": 16, "decoder_vocab_size": 128,
    "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 64,  # Whisper
    "forced_bos_token_id": None, "forced_eos_token_id": None, "begin_suppress_tokens": None, "suppress_tokens": None,
}  # fmt: skip
"""The same for an encoder with a decoder. Tokens that would be forced or suppressed are none."""

WINDOW = 6
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_BOTH_KINDS = ["sliding_attention", "full_attention"]

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=_LLAMA3),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32),
    "mistral": lambda: transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=24, sliding_window=WINDOW, layer_types=_BOTH_KINDS
    ),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=16, query_pre_attn_scalar=24, sliding_window=WINDOW, layer_types=_BOTH_KINDS
    ),
    "phi3": lambda: transformers.Phi3Config(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES, residual_multiplier=0.25, embedding_multiplier=6.0, attention_multiplier=0.125, logits_scaling=4.0
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=16, sliding_window=WINDOW, layer_types=_BOTH_KINDS, rope_parameters=_YARN,
        num_local_experts=4, num_experts_per_tok=2,
    ),
}  # fmt: skip
"""The families whose norms, rotations, gates and attentions are all replaced; by transformers' model_type."""

_ALIASES = {
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "phi-3": "phi3",
    "gemma-2": "gemma2",
    "gemma-3": "gemma3_text",
}


def canonical(name: str) -> str:
    """transformers' name of a family."""
    return _ALIASES.get(name.lower(), name.lower())


def small_config(name: str) -> Any:
    """The small configuration of a family, or of a configuration in a file; of text and images, of its text model.

    Args:
        name: a family's name, a model_type of transformers, or the path of a config.json or of a folder with one.

    Raises:
        InvalidArgument: if it is neither, or its sizes cannot be changed.
    """
    from pathlib import Path

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if (family := FAMILIES.get(canonical(name))) is not None:
        return family()
    try:
        if Path(name).exists():
            return shrunk(_of_text(transformers.AutoConfig.from_pretrained(name)))
        if canonical(name) in CONFIG_MAPPING:
            return shrunk(_of_text(CONFIG_MAPPING[canonical(name)]()))
    except Exception as error:  # a configuration of transformers may raise anything
        raise InvalidArgument(
            f"opmux models: `name` expected a configuration that can be read and made small, got {name!r}:"
            f" {first_line(error)}; name one of a model for text"
        ) from None
    raise InvalidArgument(
        f"opmux models: `name` expected a family, a model_type of transformers or a config.json, got {name!r};"
        f" tested are {', '.join(FAMILIES)}"
    )


def _of_text(config: Any) -> Any:
    """The configuration of the text model that a configuration of text and images holds; else the same one."""
    inner = getattr(config, "text_config", None)
    return config if inner is None else inner


def first_line(error: Exception) -> str:
    """The class and the first line of what transformers says; the rest is long."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def shrunk(config: Any) -> Any:
    """The same architecture at the sizes of `SIZES`; its activation, windows, caps, rope and biases are kept."""
    values = config.to_dict()
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    own_names = {key: type(config).attribute_map.get(key, key) for key in SIZES}
    changed = {own_names[key]: value for key, value in SIZES.items() if own_names[key] in values}
    layers = values.get(own_names["num_hidden_layers"])
    for key, value in values.items():
        if key not in changed and isinstance(value, list) and len(value) == layers:  # one value for each layer
            changed[key] = value[: SIZES["num_hidden_layers"]]
    if heads is not None and heads == kv_heads:
        changed["num_key_value_heads"] = SIZES["num_attention_heads"]
    if isinstance(values.get("head_dim", ""), int | None) and "qk_rope_head_dim" not in values:
        changed["head_dim"] = 16
    if isinstance(values.get("sliding_window"), int):
        changed["sliding_window"] = WINDOW
    if isinstance(kinds := values.get("layer_types"), list):
        changed["layer_types"] = (sorted(set(kinds), key=kinds.index) * 2)[: SIZES["num_hidden_layers"]]
    changed |= {key: value for key, value in _RARE.items() if values.get(key)}
    if values.get("is_encoder_decoder"):
        for part in ("encoder", "decoder"):  # T5 Gemma: one configuration for each
            if isinstance(inner := getattr(config, part, None), transformers.PreTrainedConfig):
                changed[part] = shrunk(_of_text(inner))
        changed |= {key: value for key, value in _WITH_ENCODER.items() if values.get(key) is not None}
        changed |= {key: SIZES[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
        changed["decoder_start_token_id"] = SIZES["bos_token_id"]
    for experts in ("num_local_experts", "num_experts"):
        if isinstance(values.get(experts), int):
            changed |= {experts: 4, "num_experts_per_tok": 2}
    if "num_experts_per_tok" in values and values["num_experts_per_tok"] is None:  # DeepSeek-V2
        changed["num_experts_per_tok"] = 2
    made = type(config)(
        **{**{k: v for k, v in values.items() if k not in ("model_type", "transformers_version")}, **changed}
    )
    made.quantization_config = None
    if vars(made).get("quantization_config", 0) is None:
        del made.quantization_config
    return made
