"""Which experts the tokens of a prompt go to: two models can be compared closely only where they agree on that.

Where two experts are about as good for a token, rounding decides between them, and the other one's results and
gradients differ by far more than rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers.prompted import call
from opmux_transformers.registries import asks_registry

TRIES = 16
"""How many prompts are tried before the one with the fewest differences is taken."""


Route = tuple[Tensor, Tensor]
"""The experts of the tokens of one mixture, and their weights: both ``(tokens, top_k)``."""


def routes(model: Any, ids: Tensor) -> list[Tensor]:
    """The experts of each token, in ascending order, one tensor for each mixture that the model calls."""
    with noted(model) as found, torch.no_grad():
        call(model, ids)
    return [chosen.sort(-1).values for chosen, _ in found]


@contextmanager
def noted(model: Any) -> Iterator[list[Route]]:
    """The routes of the mixtures that a model calls in here, in the order of the calls."""
    found: list[Route] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, chosen, weights = _given(args, kwargs)
        found.append((chosen, weights))

    with _hooked(model, note):
        yield found


@contextmanager
def routed(model: Any, found: Sequence[Route]) -> Iterator[None]:
    """Send the tokens of a model's mixtures where those of another model went, whatever its own routers say.

    Args:
        model: The model, which is called once in here, on the other's prompts.
        found: What `noted` gave for the other.
    """
    left = iter(found)

    def send(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (_given(args, kwargs)[0], *next(left)), {}

    with _hooked(model, send):
        yield


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, the experts and their weights in a call of a mixture."""
    names = ("hidden_states", "top_k_index", "top_k_weights")
    rows, chosen, weights = (*args, *(kwargs[name] for name in names[len(args) :]))
    return rows, chosen, weights


@contextmanager
def _hooked(model: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """Have a hook before each mixture of a model."""
    hooks = [m.register_forward_pre_hook(hook, with_kwargs=True) for m in model.modules() if asks_registry(m)]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


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
