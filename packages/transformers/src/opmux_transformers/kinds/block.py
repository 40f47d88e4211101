"""A decoder layer whose residual sum is followed by a norm: its wiring, and its forward with the two in one op."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.calls import (
    all_are_watched,
    call,
    call_as_module,
    callee,
    computes,
    may_be_fed,
    watched,
)
from opmux_transformers.carried import Ready, attend, attend_traced
from opmux_transformers.coded import Codes
from opmux_transformers.fed import block_of, taking
from opmux_transformers.foreign import is_marked, mark
from opmux_transformers.joint import joint_of
from opmux_transformers.kinds.gate import Gate, gate_of, of_codes
from opmux_transformers.kinds.norm import Norm, weight_of
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
        first: What the norm of the attention's input computes.
        fed: The linears of the attention, by name, that take its input, if nothing else in it does.
        mlp: The MLP.
        after_mlp: What its output passes through before the second sum.
        factor: The attribute that both outputs are multiplied by; empty for 1.
        parameters: The names of the forward's parameters after the hidden states, in order.
        kept_back: Those that its attention does not get; given any of them, its own forward computes.
        checkpoints: Whether the class's forward does the checkpointing, rather than its ``__call__``.
        fixed: Other numbers that its forward reads; the finding holds while they do not change.
    """

    before_attention: str
    attention: str
    after_attention: tuple[str, ...]
    norm: str
    spec: Norm
    first: Norm
    fed: tuple[str, ...]
    mlp: str
    after_mlp: tuple[str, ...]
    factor: str
    parameters: tuple[str, ...]
    kept_back: frozenset[str]
    checkpoints: bool
    fixed: tuple[tuple[str, Any], ...]


@functools.cache
def forward_of(block: Block) -> Callable[..., Tensor]:
    """The forward that replaces such a layer's own."""
    spec = block.spec
    norm_forward, first_forward = norm_forward_of(spec), norm_forward_of(block.first)

    def forward(self: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args:
            kwargs.update(zip(block.parameters, args, strict=False))
        if (
            (block.checkpoints and self.training and self.gradient_checkpointing)
            or (block.fixed and not agreement.unchanged(self, block.fixed))
            or any(kwargs.get(name) is not None for name in block.kept_back)
        ):
            result: Tensor = type(self).forward(self, hidden_states, **kwargs)
            return result
        for name in block.kept_back:
            kwargs.pop(name, None)
        everything = all_are_watched()
        feeding = not everything or may_be_fed()
        ask = call_as_module if everything else call
        children: dict[str, Any] = self._modules
        residual = hidden_states
        before, attention = children[block.before_attention], children[block.attention]
        fed = _codes_of_attention(block, first_forward, before, attention, hidden_states) if feeding else None
        if fed is not None and everything:
            hidden_states = attend_traced(attention, before(hidden_states), fed, kwargs)[0]
        elif fed is not None:
            hidden_states = attend(callee(attention), hidden_states, fed, kwargs)[0]
        else:
            called = attention if everything else callee(attention)
            hidden_states = called(hidden_states=ask(before, hidden_states), **kwargs)[0]
        for name in block.after_attention:
            hidden_states = ask(children[name], hidden_states)
        if block.factor:
            hidden_states = hidden_states * getattr(self, block.factor)
        norm, mlp = children[block.norm], children[block.mlp]
        if computes(norm, norm_forward) and spec.holds(norm):
            if feeding and (taken := _codes_taken(spec, mlp)) is not None:
                hidden_states, residual = _fed(spec, norm, mlp, taken, hidden_states, residual)
            else:
                hidden_states, residual = spec.of_sum(norm, hidden_states, residual)
                hidden_states = ask(mlp, hidden_states)
        else:  # it has to be called as a module, or was replaced
            residual = residual + hidden_states
            hidden_states = ask(norm, residual)
            hidden_states = ask(mlp, hidden_states)
        if isinstance(hidden_states, tuple):  # a mixture of experts also returns its router's scores
            hidden_states = hidden_states[0]
        for name in block.after_mlp:
            hidden_states = ask(children[name], hidden_states)
        if block.factor:
            hidden_states = hidden_states * getattr(self, block.factor)
        return residual + hidden_states.reshape(residual.shape)  # a mixture of experts may join batch and tokens

    return mark(forward)


def _codes_of_attention(
    block: Block, norm_forward: Callable[..., Any], norm: Any, attention: Any, x: Tensor
) -> Ready | None:
    """The norm of an attention's input as the codes that its linears take, or their results; None if they take none.

    ``norm_forward`` is the forward of such a norm: Dynamo would trace the cached function that returns it, and get
    another one.
    """
    spec, children = block.first, attention._modules
    if not block.fed or spec.op != "rms_norm" or not all(name in children for name in block.fed):
        return None
    taken = taking([children[name] for name in block.fed])
    if taken is None or watched(attention) or not _is_checked(attention):
        return None
    if not computes(norm, norm_forward) or not spec.holds(norm):
        return None
    codes, dtype = taken
    q, scale = opmux.rms_norm_quantize(
        x, weight_of(norm), dtype=dtype, block=block_of(codes), eps=getattr(norm, spec.eps), weight_offset=spec.offset
    )
    made = q.view(-1, q.shape[-1]), scale.reshape(-1, scale.shape[-1])
    joint = joint_of(attention, block.fed)
    return Ready(made, None if joint is None else joint.product(*made, x.dtype).split(joint.sizes, -1))


def _is_checked(attention: nn.Module) -> bool:
    """Whether a module's forward is its class's own, or opmux's: no other was there when it was checked."""
    own = vars(attention).get("forward")
    return own is None or is_marked(own)


def _codes_taken(spec: Norm, mlp: Any) -> tuple[Gate, Codes, torch.dtype] | None:
    """What codes an MLP takes in place of the norm's result; None if it takes none."""
    gate = gate_of(mlp) if spec.op == "rms_norm" else None
    taken = None if gate is None else taking([mlp._modules[name] for name in gate.inputs])
    return None if gate is None or taken is None else (gate, *taken)


def _fed(
    spec: Norm, norm: nn.Module, mlp: Any, taken: tuple[Gate, Codes, torch.dtype], x: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """The MLP's result, and the residual sum, whose norm is quantised in the pass that computes it."""
    gate, codes, dtype = taken
    q, scale, total = opmux.add_rms_norm_quantize(
        x, residual, weight_of(norm), dtype=dtype, block=block_of(codes), eps=getattr(norm, spec.eps),
        weight_offset=spec.offset,
    )  # fmt: skip
    rows, columns = q.shape[:-1].numel(), scale.shape[-1]
    return of_codes(gate, mlp, q.view(rows, -1), scale.reshape(rows, columns), x.shape, x.dtype), total
