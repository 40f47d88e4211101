"""Which linears of an attention take its input, and that nothing else in it does: then codes may take its place."""

from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers import agreement
from opmux_transformers.kinds.gate import is_linear
from opmux_transformers.probe import first
from opmux_transformers.trial import Trial


def fed_linears(trial: Trial, attention: str, x: Tensor, given: dict[str, Any]) -> tuple[str, ...]:
    """Call an attention with NaN in the place of its input, which only its linears get.

    Args:
        trial: Calls of the layer that holds it.
        attention: Its name in the layer.
        x: Its input.
        given: Its other keywords.

    Returns:
        The names of those linears; empty if something else reads the input, or more than its shape.
    """
    try:
        return _taking(trial, attention, x, given)
    except Exception:  # an attention that does not bear such an input: what it computes is fused without it
        return ()


def _taking(trial: Trial, attention: str, x: Tensor, given: dict[str, Any]) -> tuple[str, ...]:
    """`fed_linears`, which may raise what the attention raises."""
    taking: list[str] = []

    def watch(name: str, child: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            if args and args[0] is x:
                taking.append(name)

        child.register_forward_pre_hook(before)

    seen = trial.copy().get_submodule(attention)
    for name, child in seen.named_children():
        watch(name, child)
    expected = first(seen(hidden_states=x, **given))
    if not taking or len({*taking}) != len(taking) or not all(is_linear(seen._modules[name]) for name in taking):
        return ()
    blind = trial.copy().get_submodule(attention)
    stand_in = torch.full_like(x, float("nan"))
    for name in taking:
        child = blind._modules[name]
        vars(child)["forward"] = _instead(child.forward, stand_in, x)
    return (
        tuple(taking) if agreement.difference(first(blind(hidden_states=stand_in, **given)), expected) is None else ()
    )


def _instead(forward: Any, stand_in: Tensor, x: Tensor) -> Any:
    """A forward that takes the input for what stands in for it; its result lies as a part of a joint one does."""

    def instead(input: Tensor, *rest: Any, **given: Any) -> Any:
        found = forward(x if input is stand_in else input, *rest, **given)
        return torch.cat([found, found], -1)[..., : found.shape[-1]]

    return instead
