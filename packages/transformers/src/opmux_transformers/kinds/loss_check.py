"""Whether a model's loss, and its gradients, are those of `opmux.fused_linear_cross_entropy`, found on random input."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from opmux_transformers import agreement
from opmux_transformers.kinds.head_loss import Head, changes
from opmux_transformers.trial import HOOKS

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


def judge_loss(model: Any, head: nn.Linear, name: str) -> Head | str:
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
    vars(made).update((name, type(vars(model)[name])()) for name in HOOKS if name in vars(model))
    vars(made).pop("forward", None)
    layers = next(name for name in (model.base_model_prefix, "model") if name in model._modules)  # Llama 4: model
    setattr(made, layers, _Given(hidden))
    setattr(made, name, small)
    made.training = True
    for owner, attribute, value in changes(made, found) if found is not None else ():
        vars(owner)[attribute] = value
    tokens = torch.arange(_BATCH * _SEQ, device=like.device).reshape(_BATCH, _SEQ) % vocab
    labels = tokens.clone()
    labels[0, 2] = -100
    more = {} if count is None else {"num_items_in_batch": count}
    loss = made(input_ids=tokens, labels=labels, use_cache=False, **more).loss
    return [loss.detach(), *torch.autograd.grad(loss, (hidden, small.weight))]
