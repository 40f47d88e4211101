"""Translate the rope parameters of Hugging Face configurations to a rule of `opmux.rope`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from opmux import rope
from opmux.errors import invalid

Rule = Callable[..., tuple[Tensor, float]]

RULES: dict[str, Rule] = {
    "default": rope.default,
    "linear": rope.linear,
    "dynamic": rope.dynamic_ntk,
    "yarn": rope.yarn,
    "llama3": rope.llama3,
    "longrope": rope.longrope,
}
"""Hugging Face's ``rope_type`` -> the rule."""

_OLDER = {"dynamic_ntk": "dynamic", "su": "longrope"}
"""Other names of a rule: the function's name, and the one that Phi-3 first used."""

_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
"""GPT-NeoX's names for these parameters."""

_MODULE = "RotaryEmbedding"
"""The module that errors name."""

_LENGTHS = frozenset({"max_position_embeddings", "original_max_position_embeddings"})
"""Parameters that any configuration may have, although not every rule reads them."""


def rule_of(rope_type: str) -> Rule:
    """The rule with this name.

    Raises:
        InvalidArgument: If there is no such rule.
    """
    name = _OLDER.get(rope_type, rope_type)
    if name not in RULES:
        raise invalid(
            _MODULE, "rope_type", f"one of {', '.join(RULES)}", repr(rope_type),
            "for any other rule, make the tables yourself and call opmux.apply_rope",
        )  # fmt: skip
    return RULES[name]


def keywords_of(rope_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters that a rule takes; None counts as absent, and so does a length that the rule does not read.

    Raises:
        InvalidArgument: If a parameter is missing, or one would have no effect.
    """
    accepted = inspect.signature(rule_of(rope_type)).parameters
    known = {name: value for name, value in given.items() if name in accepted and value is not None}
    for name, value in given.items():
        if name not in accepted and name not in _LENGTHS and value is not None:
            raise invalid(
                _MODULE, "parameters", f"those of rope type {rope_type!r} ({', '.join(accepted)})", f"{name}={value!r}",
                "leave it out, or check the rope type",
            )  # fmt: skip
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in known:
            raise invalid(
                _MODULE, name, f"a value for rope type {rope_type!r}", "none", "pass it, or check the rope parameters"
            )
    return known


def parameters_of(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """The rope parameters of a model's configuration, including ``rope_type``, ``rope_theta`` and ``head_dim``.

    Args:
        config: A mapping or an object with the names of a Hugging Face configuration. The rope parameters are in
            ``rope_parameters``, or in ``rope_scaling`` with the base beside it.
        layer_type: Whose parameters to read, if each type of layer has its own.

    Raises:
        InvalidArgument: If the head size or the layer type cannot be determined.
    """

    def read(name: str) -> Any:
        return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)

    own: dict[str, Any] = dict(read("rope_parameters") or read("rope_scaling") or {})
    by_layer = bool(own) and all(isinstance(value, Mapping) for value in own.values())
    if not by_layer and (local := read("rope_local_base_freq")) is not None:  # Gemma 3, at first
        own, by_layer = {"full_attention": own, "sliding_attention": {"rope_theta": local}}, True
    if by_layer:
        if layer_type not in own:
            raise invalid(
                _MODULE, "layer_type", f"one of {', '.join(own)}", repr(layer_type),
                "the configuration has rope parameters for each type of layer: name one",
            )  # fmt: skip
        own = dict(own[layer_type])
    older_name = own.pop("type", None)
    rope_type = own.pop("rope_type", None) or older_name or "default"
    for name in ("rope_theta", "partial_rotary_factor", *sorted(_LENGTHS)):
        if own.get(name) is None:
            own[name] = read(name)
        if own[name] is None and name in _NEOX:
            own[name] = read(_NEOX[name])
    if own["rope_theta"] is None:
        own["rope_theta"] = 10_000.0
    head_dim = read("head_dim")
    if head_dim is None:
        hidden, heads = read("hidden_size"), read("num_attention_heads")
        if not hidden or not heads or hidden % heads:
            raise invalid(
                _MODULE, "config", "head_dim, or hidden_size and num_attention_heads, which divides it",
                f"hidden_size {hidden} and num_attention_heads {heads}", "add one, or pass the arguments one by one",
            )  # fmt: skip
        head_dim = hidden // heads
    return {"rope_type": rope_type, "head_dim": head_dim, **own}
