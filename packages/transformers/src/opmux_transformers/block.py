"""Decoder layers whose residual sum is followed by a norm: the two become `opmux.add_rms_norm`.

How a layer wires its children is found by watching it once on random input: who is called in which order, with what,
and which inputs are sums of the residual and the output before. A layer wired as

    h = norm(x); h = attention(h, ...); [h = more(h)]; x = x + factor * h
    h = norm(x); h = mlp(h); [h = more(h)]; x = x + factor * h

gets a forward that does this, and no other layer does. ``more`` are dropouts or the norms of a sandwich, ``factor`` is
an attribute of the layer (Granite) or 1.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers import norm as norms_of
from opmux_transformers.calls import all_are_watched, call, call_as_module, callee, computes
from opmux_transformers.foreign import mark, whose_forward
from opmux_transformers.norm import Norm, weight_of


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
        checkpoints: Whether it is the class's forward that checkpoints, and not its ``__call__``.
        fixed: Other numbers that its forward names, which are to stay as they are.
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


@dataclass
class _Call:
    """One call of a child, as it was watched."""

    name: str
    given: Tensor
    result: Tensor
    keywords: dict[str, Any]


def find_block(module: nn.Module, attention: str, norms: dict[str, Norm], given: dict[str, Any]) -> Block | str:
    """Judge a layer.

    Args:
        module: the layer.
        attention: the name of its attention.
        norms: its children that are RMS norms and were replaced, by name.
        given: keywords for its forward, ``hidden_states`` in float32 among them.

    Returns:
        How it is wired, or why it is left alone.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    if (unknown := agreement.unknown_needs(module, given)) is not None:
        return unknown
    try:
        with agreement.still(module):
            return _judge(module, attention, norms, given)
    except _Unfit as unfit:
        return str(unfit)
    except Exception as error:  # a stranger's forward may raise anything
        return f"its check on random input failed: {type(error).__name__}: {error}"


class _Unfit(Exception):
    """The layer is wired in another way."""


def _watch(module: nn.Module, state: dict[str, Tensor], given: dict[str, Any]) -> tuple[list[_Call], Any]:
    """Call the layer once and note the calls of its children."""
    calls: list[_Call] = []
    inputs: dict[str, tuple[Tensor, dict[str, Any]]] = {}
    handles = []
    for name, child in module.named_children():

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            tensor = args[0] if args else kwargs["hidden_states"]
            inputs[name] = (tensor, {k: v for k, v in kwargs.items() if v is not tensor})

        def after(_: nn.Module, args: Any, kwargs: dict[str, Any], result: Any, name: str = name) -> None:
            first = result[0] if isinstance(result, tuple) else result
            calls.append(_Call(name, inputs[name][0], first, inputs[name][1]))

        handles.append(child.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(child.register_forward_hook(after, with_kwargs=True))
    try:
        result = agreement.call(module, state, **given)
    finally:
        for handle in handles:
            handle.remove()
    return calls, result


def _judge(module: nn.Module, attention: str, norms: dict[str, Norm], given: dict[str, Any]) -> Block | str:
    x = given["hidden_states"]
    state = agreement.random_state(module)
    calls, result = _watch(module, state, given)
    if not isinstance(result, Tensor):
        raise _Unfit("it returns more than the hidden states")
    names = [call.name for call in calls]
    if attention not in names or len(set(names)) != len(names):
        raise _Unfit("it does not call each of its children once")
    if names[0] not in norms or calls[0].given is not x or names.index(attention) != 1:
        raise _Unfit("no norm follows a residual sum inside of it")
    if calls[1].given is not calls[0].result:
        raise _Unfit("its attention does not take the norm's output")
    sums = [i for i in range(2, len(calls)) if calls[i].given is not calls[i - 1].result]
    if len(sums) != 1 or names[sums[0]] not in norms:
        raise _Unfit("no norm follows a residual sum inside of it")
    (at,) = sums
    if at + 1 >= len(calls):
        raise _Unfit("nothing follows the norm of its residual sum")
    first = _factor(x, calls[at - 1].result, calls[at].given)
    second = _factor(calls[at].given, calls[-1].result, result)
    lost = [k for k, v in given.items() if k != "hidden_states" and calls[1].keywords.get(k) is not v]
    if lost:
        raise _Unfit(f"its attention does not get `{'`, `'.join(lost)}` as it came")
    parameters = list(inspect.signature(module.forward).parameters.values())
    factor = _attribute(module, first, second)
    found = Block(
        before_attention=names[0],
        attention=attention,
        after_attention=tuple(names[2:at]),
        norm=names[at],
        spec=norms[names[at]],
        mlp=names[at + 1],
        after_mlp=tuple(names[at + 2 :]),
        factor=factor,
        parameters=tuple(p.name for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD),
        checkpoints="gradient_checkpointing" in type(module).forward.__code__.co_names,
        fixed=agreement.numbers(module, factor),
    )

    def own() -> Tensor:
        result: Tensor = agreement.call(module, state, **given)
        return result

    def replacement() -> Tensor:
        vars(module)["forward"] = forward_of(found).__get__(module)
        try:
            return own()
        finally:
            vars(module).pop("forward")

    reason = agreement.difference(replacement(), result)
    return reason or agreement.difference_in_training(module, x.device, own, replacement) or found


def _factor(residual: Tensor, part: Tensor, total: Tensor) -> float:
    """The number that makes ``residual + number * part`` the total."""
    if part.shape != residual.shape or total.shape != residual.shape:
        raise _Unfit("its residual sum changes the shape")
    rest = (total - residual).double()
    number = float((rest * part).sum() / part.double().square().sum())
    if agreement.difference((residual + number * part).float(), total) is not None:
        raise _Unfit("what it adds to the residual is not the output before")
    return number


def _attribute(module: nn.Module, first: float, second: float) -> str:
    """The attribute that holds the factor of both sums."""
    if abs(first - second) > 1e-4 * abs(first):
        raise _Unfit("its two residual sums have different factors")
    if abs(first - 1.0) < 1e-4:
        return ""
    for name, value in vars(module).items():
        if isinstance(value, float) and abs(value - first) <= 1e-4 * abs(first):
            return name
    raise _Unfit(f"its residual sums have the factor {first:.4g}, which no attribute holds")


@functools.cache
def forward_of(block: Block) -> Callable[..., Tensor]:
    """The forward that takes the place of such a layer's own."""
    spec = block.spec
    norm_forward = norms_of.forward_of(spec)

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
        if computes(norm, norm_forward) and (not spec.fixed or agreement.unchanged(norm, spec.fixed)):
            hidden_states, residual = opmux.add_rms_norm(
                hidden_states, residual, weight_of(norm), eps=spec.eps_of(norm), weight_offset=spec.offset
            )
        else:  # it has to be called, or is another one by now
            residual = residual + hidden_states
            hidden_states = ask(norm, residual)
        hidden_states = ask(children[block.mlp], hidden_states)
        if isinstance(hidden_states, tuple):  # a mixture of experts gives its router's scores too
            hidden_states = hidden_states[0]
        for name in block.after_mlp:
            hidden_states = ask(children[name], hidden_states)
        if block.factor:
            hidden_states = hidden_states * getattr(self, block.factor)
        return residual + hidden_states

    return mark(forward)
