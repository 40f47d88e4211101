"""The loss of a causal language model in training, whose logits are never whole: `head_loss` says how."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from opmux_transformers import agreement, compressed
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.head_loss import Head, changes
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.loss_check import judge_loss
from opmux_transformers.survey import Survey
from opmux_transformers.trial import still
from opmux_transformers.undo import Patch


class LossKind(Kind[Head]):
    """The loss of a causal language model."""

    name = option = "loss"

    def find(self, survey: Survey) -> Iterable[str]:
        """The model itself, if it computes a causal language model's loss."""
        model: Any = survey.model
        causal = hasattr(type(model), "loss_function") and _is_causal(model)
        parameters = inspect.signature(type(model).forward).parameters
        return [""] if causal and "labels" in parameters and _head_of(model) is not None else []

    def judge(self, survey: Survey, path: str) -> Head | str:
        """Whether its loss and gradients are those of the op."""
        model: Any = survey.model
        head = _head_of(model)
        name = next((name for name, child in model.named_children() if child is head), None)
        if name is None:
            return "its head belongs to a module inside it"
        if type(head) is not nn.Linear or head.bias is not None or head._forward_hooks or head._forward_pre_hooks:
            return "its head is not a plain linear layer without a bias"
        if compressed.scheme_of(head) is not None:
            return "its head is quantised"
        foreign = whose_forward(model) or whose_forward(head)
        if foreign is not None:
            return foreign
        if "_loss_function" in vars(model):
            return "it has been given a loss function of its own"
        if agreement.on_meta(model):
            return "it is on the meta device, where nothing can be checked: load the weights first"
        try:
            with still(), torch.enable_grad():
                return judge_loss(model, head, name)
        except Exception as error:  # a forward may raise anything
            return f"its forward raised {type(error).__name__} on random hidden states: {error}"

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Set the forwards of the model and of its head, and the loss function."""
        for found in survey.found(self).values():
            for owner, name, value in changes(survey.model, found):
                patch.set(owner, name, value, self.name)

    def op(self, finding: Head) -> str:
        """Always the same one."""
        return "fused_linear_cross_entropy"

    def note(self, finding: Head) -> str:
        """What is different for the caller."""
        return "in training, no logits"


def _is_causal(model: Any) -> bool:
    """Whether transformers gives it the loss of a causal language model, as it does where it has no type (GPT-2)."""
    kind = getattr(model, "loss_type", None)
    return bool(kind == "ForCausalLM" or (kind is None and model.can_generate()))


def _head_of(model: Any) -> Any:
    """The layer that makes logits; None if there is none."""
    get = getattr(model, "get_output_embeddings", None)
    return get() if callable(get) else None


LOSS = LossKind()
