"""A step in training of a patched model, and what its report says of the loss."""

from collections.abc import Callable
from typing import Any

from samples import ids
from torch import Tensor

import opmux_transformers


def row(of: Any) -> Any:
    """The row of the loss in the report of a patched model."""
    return next(r for r in opmux_transformers.report(of).rows if r.kind == "loss")


def trained(of: Any, **more: Any) -> tuple[Any, list[Tensor]]:
    """What a step in training gives, and all gradients."""
    of.train()
    tokens = ids()
    labels = tokens.clone()
    labels[0, :4] = -100
    outputs = of(tokens, labels=labels, **more)
    outputs.loss.backward()
    return outputs, [p.grad for p in of.parameters() if p.grad is not None]


def waiting(of: Any, before: Callable[[], Any]) -> Callable[[], None]:
    """Have a model do something between its layers and its head; returns what undoes that."""

    def hook(*_: Any) -> None:
        before()

    return of.model.norm.register_forward_hook(hook).remove
