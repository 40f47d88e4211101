"""The experts function that transformers' registry calls for patched models, under the name ``opmux``.

The products are grouped ones of opmux; so is the gate between them where it was found to be one of opmux's, and else it
is the module's own. What a check did not cover (expert parallelism, a number that was changed after the patch) is
computed by the implementation that the configuration named before.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn import GroupedCodes, mix_experts
from opmux_transformers import agreement
from opmux_transformers.calls import watched
from opmux_transformers.coded import Kept
from opmux_transformers.registries import eager_forward, registry_of

NAME = "opmux"
"""What a patched model's configuration calls its experts function."""

HELD = "_opmux_experts"
"""The attribute of an experts module that holds its `Held`."""

SCALES = "_scale_inv"
"""What transformers adds to the name of a weight for that of its scales."""

KEPT = "_opmux_kept_"
"""With the name of a weight, the attribute of an experts module that holds its codes, if `patch` quantised it."""

USUAL = "grouped_mm"
"""transformers' own default."""

GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu_and_mul": opmux.silu_and_mul,
    "gelu_and_mul": opmux.gelu_and_mul,
    "gelu_and_mul(tanh)": functools.partial(opmux.gelu_and_mul, approximate="tanh"),
}


@dataclass(frozen=True)
class Experts:
    """What was found of a mixture's experts.

    Attributes:
        gate: A name in `GATES`; empty if the module's own gate is called between the products.
        activation: The class of the activation that the gate replaces, or the function.
        codes: Which values of a row share a scale, a name of `opmux.nn.GroupedCodes`, if its weights are codes of 8
            bits; empty if they are not.
        fixed: Numbers that the module's forward reads; the finding holds while they do not change.
    """

    gate: str
    activation: Any = None
    codes: str = ""
    fixed: tuple[tuple[str, Any], ...] = ()

    def gate_of(self, module: Any) -> Callable[[Tensor], Tensor]:
        """What to call between the products: the op, or the module's own gate if its activation has to be called."""
        if self.gate and activation_of(module) is self.activation:
            return GATES[self.gate]
        gate: Callable[[Tensor], Tensor] = module._apply_gate if module.has_gate else module.act_fn
        return gate


@dataclass(frozen=True)
class Held:
    """What an experts module of a patched model holds.

    Attributes:
        found: What was found; None if it was left.
        before: The name of the experts function that its configuration named before.
    """

    found: Experts | None
    before: str | None


def opmux_experts(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a mixture's experts, as transformers' experts functions do.

    Args:
        module: The experts module that calls.
        hidden_states: ``(tokens, hidden)``.
        top_k_index: The experts of each token, ``(tokens, top_k)``.
        top_k_weights: Their factors, ``(tokens, top_k)``.

    Returns:
        ``(tokens, hidden)``, in the dtype of the hidden states.
    """
    held: Held | None = getattr(module, HELD, None)
    found = None if held is None else held.found
    if found is None or getattr(module, "_is_expert_parallel", False) or not agreement.unchanged(module, found.fixed):
        before = USUAL if held is None or held.before is None else held.before
        function = registry_of(type(module)).get_interface(before, eager_forward(type(module)))
        result: Tensor = function(module, hidden_states, top_k_index, top_k_weights)
        return result
    return compute_experts(module, found, hidden_states, top_k_index, top_k_weights)


def compute_experts(
    module: nn.Module, found: Experts, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The same for a module whose finding holds."""
    of: Any = module
    names = up_name(module), "down_proj"
    up, down = (weight_of(module, name, found.codes) for name in names)
    biases: dict[str, Any] = {}
    if of.has_bias:
        biases = {"up_bias": of.gate_up_proj_bias if of.has_gate else of.up_proj_bias, "down_bias": of.down_proj_bias}
    after = of.post_expert_norm if getattr(of, "has_post_expert_norm", False) else None
    like = up.original if isinstance(up, GroupedCodes) else up
    x = hidden_states if like is None else hidden_states.to(like.dtype)
    mixed = mix_experts(x, top_k_index, top_k_weights, up, down, found.gate_of(module), after=after, **biases)
    return mixed.to(hidden_states.dtype)


def up_name(module: Any) -> str:
    """The name of a module's first weight."""
    return "gate_up_proj" if module.has_gate else "up_proj"


def weight_of(module: Any, name: str, codes: str) -> Tensor | GroupedCodes:
    """A weight ``(experts, n, k)`` of a module's experts: its own codes, those kept beside it, or the weight itself."""
    weight: Tensor = getattr(module, name)
    if codes and weight.element_size() == 1:
        return GroupedCodes(weight, getattr(module, name + SCALES).to(torch.float32), codes)
    if module.is_transposed:
        weight = weight.mT
    kept: Kept | None = vars(module).get(KEPT + name)
    return weight if kept is None else GroupedCodes(*kept.of(getattr(module, name)), "token", weight)


def activation_of(module: nn.Module) -> Any:
    """The class of a module's activation, or its function; None if it has none, or a call of it may be seen."""
    child = module._modules.get("act_fn")
    if child is None:
        return vars(module).get("act_fn")
    return None if "forward" in child.__dict__ or watched(child) else type(child)
