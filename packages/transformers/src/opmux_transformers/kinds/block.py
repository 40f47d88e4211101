"""A decoder layer whose residual sum is followed by a norm: its wiring, and its forward with the two in one op."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from opmux_transformers import agreement
from opmux_transformers.calls import all_are_watched, call, call_as_module, callee, computes
from opmux_transformers.foreign import mark
from opmux_transformers.kinds.norm import Norm
from opmux_transformers.kinds.norm import forward_of as norm_forward_of


@dataclass(frozen=True)
class Block:
    """How a decoder layer is wired: its children by name.

    Attributes:
        before_attention: The norm of the attention's input.
        attention: The attention.
        after_attention: What its output passes through before the sum.
        norm: The norm of the sum, fused with it.
        spec: What that norm computes.
        mlp: The MLP.
        after_mlp: What its output passes through before the second sum.
        factor: The attribute that both outputs are multiplied by; empty for 1.
        parameters: The names of the forward's parameters after the hidden states, in order.
        checkpoints: Whether the class's forward does the checkpointing, rather than its ``__call__``.
        fixed: Other numbers that its forward reads; the finding holds while they do not change.
    """

    before_attention: str
    attention: str
    after_attention: tuple[str, ...]
    norm: str
    spec: Norm
    mlp: str
    after_mlp: tuple[str, ...]
    factor: str
    parameters: tuple[str, ...]
    checkpoints: bool
    fixed: tuple[tuple[str, Any], ...]


@functools.cache
def forward_of(block: Block) -> Callable[..., Tensor]:
    """The forward that replaces such a layer's own."""
    spec = block.spec
    norm_forward = norm_forward_of(spec)

    def forward(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args:
            kwargs.update(zip(block.parameters, args, strict=False))
        if (block.checkpoints and self.training and self.gradient_checkpointing) or (
            block.fixed and not agreement.unchanged(self, block.fixed)
        ):
            result: Tensor = type(self).forward(self, hidden_states, **kwargs)
            return result
        everything = all_are_watched()
        ask = call_as_module if everything else call
        children: dict[str, Any] = self._modules
        residual = hidden_states
        hidden_states = ask(children[block.before_attention], hidden_states)
        attention = children[block.attention]
        attend = attention if everything else callee(attention)
        hidden_states = attend(hidden_states=hidden_states, **kwargs)[0]
        for name in block.after_attention:
            hidden_states = ask(children[name], hidden_states)
        if block.factor:
            hidden_states = hidden_states * getattr(self, block.factor)
        norm = children[block.norm]
        if computes(norm, norm_forward) and spec.holds(norm):
            hidden_states, residual = spec.of_sum(norm, hidden_states, residual)
        else:  # it has to be called as a module, or was replaced
            residual = residual + hidden_states
            hidden_states = ask(norm, residual)
        hidden_states = ask(children[block.mlp], hidden_states)
        if isinstance(hidden_states, tuple):  # a mixture of experts also returns its router's scores
            hidden_states = hidden_states[0]
        for name in block.after_mlp:
            hidden_states = ask(children[name], hidden_states)
        if block.factor:
            hidden_states = hidden_states * getattr(self, block.factor)
        return residual + hidden_states

    return mark(forward)
