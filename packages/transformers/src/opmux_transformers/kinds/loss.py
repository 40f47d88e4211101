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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast

import opmux
from opmux.nn import autocast_dtype
from opmux_transformers import agreement
from opmux_transformers.calls import linears_are_torchs, watched
from opmux_transformers.foreign import mark, whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.trial import still
from opmux_transformers.undo import Patch


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
    """The loss function that transformers gives to a model of this type."""
    from transformers.loss.loss_utils import LOSS_MAPPING

    found: Callable[..., Any] = LOSS_MAPPING[model.loss_type]
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


def _changes(model: Any, found: Head) -> list[tuple[Any, str, Any]]:
    """What a patch sets: (owner, attribute, value)."""
    head, computed = getattr(model, found.name), mark(loss_of(found))
    forward = forward_of(type(model).forward, found.name, computed)
    return [
        (head, "forward", mark(head_forward).__get__(head)),
        (model, "_loss_function", computed.__get__(model)),
        (model, "forward", mark(forward).__get__(model)),
    ]


class LossKind(Kind[Head]):
    """The loss of a causal language model."""

    name = option = "loss"

    def find(self, survey: Survey) -> Iterable[str]:
        """The model itself, if it computes a causal language model's loss."""
        model: Any = survey.model
        causal = getattr(model, "loss_type", None) == "ForCausalLM" and hasattr(type(model), "loss_function")
        parameters = inspect.signature(type(model).forward).parameters
        return [""] if causal and "labels" in parameters and _head_of(model) is not None else []

    def judge(self, survey: Survey, path: str) -> Head | str:
        """Whether its loss and gradients are those of the op."""
        model: Any = survey.model
        head = _head_of(model)
        name = next((name for name, child in model.named_children() if child is head), None)
        if name is None:
            return "its head is that of another model inside it"
        if type(head) is not nn.Linear or head.bias is not None or head._forward_hooks or head._forward_pre_hooks:
            return "its head is not a plain linear layer without a bias"
        foreign = whose_forward(model) or whose_forward(head)
        if foreign is not None:
            return foreign
        if "_loss_function" in vars(model):
            return "it has been given a loss function of its own"
        if agreement.on_meta(model):
            return "it is on the meta device, where nothing can be checked: load the weights first"
        try:
            with still(), torch.enable_grad():
                return _judge(model, head, name)
        except Exception as error:  # a forward may raise anything
            return f"its forward raised {type(error).__name__} on random hidden states: {error}"

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Set the forwards of the model and of its head, and the loss function."""
        for found in survey.found(self).values():
            for owner, name, value in _changes(survey.model, found):
                patch.set(owner, name, value, self.name)

    def op(self, finding: Head) -> str:
        """Always the same one."""
        return "fused_linear_cross_entropy"

    def note(self, finding: Head) -> str:
        """What is different for the caller."""
        return "in training, no logits"


def _head_of(model: Any) -> Any:
    """The layer that makes logits; None if there is none."""
    get = getattr(model, "get_output_embeddings", None)
    return get() if callable(get) else None


_BATCH, _SEQ, _WIDTH = 2, 7, 16


class _States(MoeModelOutputWithPast):  # type: ignore[misc]  # a class of a package whose types are not read
    """Hidden states; whatever else a model asks its layers for is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """What stands in for the layers of a model: it returns hidden states that it was given."""

    @property
    def decoder(self) -> "_Given":
        """Itself: some models call a part of their layers."""
        return self

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *args: Any, **kwargs: Any) -> _States:
        """The hidden states, whatever the tokens are."""
        return _States(last_hidden_state=self.hidden)


def _judge(model: Any, head: nn.Linear, name: str) -> Head | str:
    """Compare the loss and the gradients of hidden states and head, for both ways to divide them."""
    items = torch.tensor(5, device=head.weight.device)
    own = [_computed(model, head, name, None, count) for count in (None, items)]
    reason: str | None = None
    for found in _candidates(model.config.get_text_config(decoder=True), name):
        ours = [_computed(model, head, name, found, count) for count in (None, items)]
        pairs = [pair for mine, theirs in zip(ours, own, strict=True) for pair in zip(mine, theirs, strict=True)]
        reason = next((r for mine, theirs in pairs if (r := agreement.difference(mine, theirs)) is not None), None)
        if reason is None:
            return found
    return f"its logits or its loss are something else than those of its head: {reason}"


def _candidates(config: Any, name: str) -> list[Head]:
    """What the numbers in a configuration suggest (Gemma 2's bound, Granite's divisor, Cohere's factor), or nothing."""

    def number(attribute: str, default: float) -> float:
        value = getattr(config, attribute, None)
        return float(value) if isinstance(value, (int, float)) and value > 0 else default

    scale = number("logit_scale", 1.0) / number("logits_scaling", 1.0)
    return list(dict.fromkeys((Head(name, scale, number("final_logit_softcapping", 0.0)), Head(name))))


def _computed(model: Any, head: nn.Linear, name: str, found: Head | None, count: Any) -> list[Tensor]:
    """The loss, and the gradients of hidden states and head; of the replacement, unless that is None."""
    like, vocab = head.weight, head.out_features
    hidden = agreement.random(_BATCH, _SEQ, _WIDTH, like=like, dtype=torch.float32).requires_grad_()
    small = nn.Linear(_WIDTH, vocab, bias=False, device="meta")
    weight = agreement.random(vocab, _WIDTH, like=like, dtype=torch.float32, scale=0.5, seed=1)
    small.weight = nn.Parameter(weight)
    made: Any = object.__new__(type(model))
    vars(made).update(vars(model), _modules=dict(model._modules))
    vars(made).pop("forward", None)
    layers = next(name for name in (model.base_model_prefix, "model") if name in model._modules)  # Llama 4: model
    setattr(made, layers, _Given(hidden))
    setattr(made, name, small)
    made.training = True
    for owner, attribute, value in _changes(made, found) if found is not None else ():
        vars(owner)[attribute] = value
    tokens = torch.arange(_BATCH * _SEQ, device=like.device).reshape(_BATCH, _SEQ) % vocab
    labels = tokens.clone()
    labels[0, 2] = -100
    more = {} if count is None else {"num_items_in_batch": count}
    loss = made(input_ids=tokens, labels=labels, use_cache=False, **more).loss
    return [loss.detach(), *torch.autograd.grad(loss, (hidden, small.weight))]


LOSS = LossKind()
