"""Which experts the tokens of a prompt go to: two models can be compared closely only where they agree on that.

Where two experts are about as good for a token, rounding decides between them, and the other one's gradients differ by
far more than rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers.registries import asks_registry

TRIES = 16
"""How many prompts are tried before the one with the fewest differences is taken."""


def routes(model: Any, ids: Tensor) -> list[Tensor]:
    """The experts of each token, in ascending order, one tensor for each mixture that the model calls."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        chosen = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
        found.append(chosen.sort(-1).values)

    hooks = [m.register_forward_pre_hook(note, with_kwargs=True) for m in model.modules() if asks_registry(m)]
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def routed_alike(models: Sequence[Any], prompts: Callable[[int], Tensor]) -> Tensor:
    """The first of some prompts whose tokens go to the same experts in all models, or the nearest to it.

    Args:
        models: The models.
        prompts: Makes prompts for a number from 0.
    """
    if not any(asks_registry(module) for module in models[0].modules()):
        return prompts(0)
    best, fewest = prompts(0), -1
    for number in range(TRIES):
        ids = prompts(number)
        apart = _apart(routes(model, ids) for model in models)
        if fewest < 0 or apart < fewest:
            best, fewest = ids, apart
        if not fewest:
            break
    return best


def _apart(found: Iterable[list[Tensor]]) -> int:
    """How many tokens go elsewhere than in the first model."""
    first, *others = found
    return sum(int((one != other).any(-1).sum()) for routed in others for one, other in zip(first, routed, strict=True))
