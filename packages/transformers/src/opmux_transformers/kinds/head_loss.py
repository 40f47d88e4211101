"""The loss of a causal language model in training: `opmux.fused_linear_cross_entropy`, which makes no whole logits.

A model calls its head, then its ``loss_function`` with the logits. In training with labels, a patched model's head
hands over what it was called with instead of computing logits, and its ``loss_function`` computes the loss from that
and the head's weight. So what the model does to its logits in between has no effect: a model is changed only if its
loss and the gradients are the same on random input.

What is handed over belongs to one call in one thread: several threads may call one model, and replicas of
``torch.nn.DataParallel`` compute in threads of their own.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn import autocast_dtype
from opmux_transformers.calls import linears_are_torchs, watched
from opmux_transformers.foreign import mark


class Taken:
    """What a head was called with in a call of its model that needs no logits."""

    hidden: Tensor | None = None
    weight: Tensor | None = None

    def __init__(self, head: Any) -> None:
        self.head = head


class Calls(threading.local):
    """The current call of a thread that needs no logits; a class, because torch.compile reads no ContextVar."""

    taken: Taken | None = None


CALLS = Calls()


@dataclass(frozen=True)
class Head:
    """The head of a model.

    Attributes:
        name: Its name among the model's children.
        scale: What its logits are multiplied by.
        softcap: What they are bounded by then; 0 for no bound.
    """

    name: str
    scale: float = 1.0
    softcap: float = 0.0


def head_forward(self: Any, input: Tensor) -> Tensor:  # the name in torch.nn.Linear
    """Hand over the input where a loss is to be computed from it; else compute logits."""
    taken = CALLS.taken if self.training else None
    if taken is not None and taken.head is not self:
        taken = None  # of a model that calls this head's
    weight = self.weight
    # Hooks gather a sharded weight, which is whole during this call only; a process may replace what linears compute.
    dtype = autocast_dtype(input)
    if taken is None or watched(self) or not linears_are_torchs():
        logits: Tensor = type(self).forward(self, input)
        return logits
    if dtype is not None:
        taken.hidden, taken.weight = input.to(dtype), weight.to(dtype)
    elif input.dtype == weight.dtype:
        taken.hidden, taken.weight = input, weight
    else:
        return nn.functional.linear(input, weight)
    return input


def loss_of(head: Head) -> Callable[..., Any]:
    """A ``loss_function`` for the logits of a head."""

    def loss_function(
        self: Any,
        logits: Tensor,
        labels: Tensor | None = None,
        vocab_size: int | None = None,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The loss of the next token; from the head's input, or from logits where there are some."""
        taken = CALLS.taken
        if taken is None or taken.hidden is None or taken.weight is None:
            own = _own_loss(self)
            more = {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index}
            return own(logits, labels, vocab_size, **more, shift_labels=shift_labels, **kwargs)
        if shift_labels is None:
            assert labels is not None  # else the model would not compute a loss
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        loss = opmux.fused_linear_cross_entropy(
            taken.hidden if head.scale == 1.0 else taken.hidden * head.scale,
            taken.weight,
            shift_labels.to(taken.hidden.device).reshape(taken.hidden.shape[:-1]),
            ignore_index=ignore_index,
            softcap=head.softcap,
            reduction="mean" if num_items_in_batch is None else "sum",
        )
        if num_items_in_batch is None:
            return loss
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss / num_items_in_batch

    return loss_function


def _own_loss(model: Any) -> Callable[..., Any]:
    """The loss function that transformers gives to a model of this type; without a type, that of causal models."""
    from transformers.loss.loss_utils import LOSS_MAPPING

    found: Callable[..., Any] = LOSS_MAPPING[model.loss_type or "ForCausalLM"]
    return found


def forward_of(own: Callable[..., Any], head_name: str, computed: Callable[..., Any]) -> Callable[..., Any]:
    """A model's forward that computes no logits in training with labels.

    Args:
        own: the forward of its class.
        head_name: the attribute with its head.
        computed: the loss function that needs no logits; with another one, set later, there are logits.
    """
    parameters = inspect.signature(own).parameters
    by_name = parameters["labels"].kind is inspect.Parameter.KEYWORD_ONLY
    place = sys.maxsize if by_name else list(parameters).index("labels") - 1

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        labels = args[place] if len(args) > place else kwargs.get("labels")
        whole = (
            not self.training
            or not torch.is_grad_enabled()
            or len(args) > place + 1  # what follows the labels may ask for a part of the logits
            or kwargs.get("return_dict") is False
            or not self.config.return_dict
            or not isinstance(kwargs.get("logits_to_keep", 0), int)
            or kwargs.get("logits_to_keep", 0) != 0
            or getattr(vars(self).get("_loss_function"), "__func__", None) is not computed  # set after the patch
        )
        if labels is None:
            return own(self, *args, **kwargs)
        taken = None if whole else Taken(getattr(self, head_name))
        before, CALLS.taken = CALLS.taken, taken  # another model's, if that one calls this one
        try:
            outputs = own(self, *args, **kwargs)
        finally:
            CALLS.taken = before
        if taken is None or taken.hidden is None:
            return outputs
        return type(outputs)(**{name: value for name, value in outputs.items() if name != "logits"})

    return forward


def changes(model: Any, found: Head) -> list[tuple[Any, str, Any]]:
    """What a patch sets: (owner, attribute, value)."""
    head, computed = getattr(model, found.name), mark(loss_of(found))
    forward = forward_of(type(model).forward, found.name, computed)
    return [
        (head, "forward", mark(head_forward).__get__(head)),
        (model, "_loss_function", computed.__get__(model)),
        (model, "forward", mark(forward).__get__(model)),
    ]
