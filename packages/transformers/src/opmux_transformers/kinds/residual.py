"""Decoder layers whose residual sum is followed by a norm: the two become one op.

How a layer wires its children is found by observing a copy of it once on random input: which child is called when, with
what, and which inputs are sums of the residual and the previous output. A layer wired as

    h = norm(x); h = attention(h, ...); [h = more(h)]; x = x + factor * h
    h = norm(x); h = mlp(h); [h = more(h)]; x = x + factor * h

gets a forward that does this; other layers do not. ``more`` are dropouts or the second norms of a sandwich, ``factor``
is an attribute of the layer (Granite) or 1.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers import agreement
from opmux_transformers.attention import PASSED_OVER
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.block import Block, forward_of
from opmux_transformers.kinds.feeding import fed_linears
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.norm import NORM, Norm
from opmux_transformers.probe import is_candidate, layer_kind, positions, rotates, with_attention
from opmux_transformers.registries import asks_fp8_registry, with_eager_experts
from opmux_transformers.survey import Survey
from opmux_transformers.tables import make
from opmux_transformers.trial import Trial, difference_in_training, still
from opmux_transformers.undo import Patch


@dataclass
class _Call:
    """One observed call of a child."""

    name: str
    given: Any
    result: Tensor
    keywords: dict[str, Any]


def find_block(
    module: nn.Module, attention: str, norms: dict[str, Norm], given: dict[str, Any], prepare: Callable[[Any], None]
) -> Block | str:
    """Judge a layer.

    Args:
        module: the layer.
        attention: the name of its attention.
        norms: its child norms that are replaced, by name.
        given: keywords for its forward, including ``hidden_states`` in float32.
        prepare: what is done to a copy of the layer before it is called.

    Returns:
        How it is wired, or why it is left unchanged.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    if (unknown := agreement.unknown_needs(module, given)) is not None:
        return unknown
    try:
        with still():
            return _judge(module, attention, norms, given, prepare)
    except _Unfit as unfit:
        return str(unfit)
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, given, error)


class _Unfit(Exception):
    """The layer is wired in another way."""


def _watch(trial: Trial, given: dict[str, Any]) -> tuple[list[_Call], Any]:
    """Call a copy of the layer once and record the calls of its children."""
    layer = trial.copy()
    calls: list[_Call] = []
    inputs: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, child in layer.named_children():

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            tensor = args[0] if args else kwargs.get("hidden_states")
            inputs[name] = (tensor, {k: v for k, v in kwargs.items() if v is not tensor})

        def after(_: nn.Module, args: Any, kwargs: dict[str, Any], result: Any, name: str = name) -> None:
            first = result[0] if isinstance(result, tuple) else result
            calls.append(_Call(name, inputs[name][0], first, inputs[name][1]))

        child.register_forward_pre_hook(before, with_kwargs=True)
        child.register_forward_hook(after, with_kwargs=True)
    return calls, trial.run(layer, lambda: layer(**given))


def _judge(
    module: nn.Module, attention: str, norms: dict[str, Norm], given: dict[str, Any], prepare: Callable[[Any], None]
) -> Block | str:
    x = given["hidden_states"]
    trial = Trial.random(module).where(prepare)
    calls, result = _watch(trial, given)
    if not isinstance(result, Tensor):
        raise _Unfit("it returns more than the hidden states")
    names = [call.name for call in calls]
    holding = {name for name, child in module.named_children() if next(child.parameters(), None) is not None}
    if len(set(names)) != len(names) or not holding <= set(names):
        raise _Unfit("it does not call each of its children once")
    if names[0] == attention and any(names[i] in norms and calls[i].given is calls[i - 1].result for i in range(1, 3)):
        raise _Unfit("it norms the outputs before it adds them to the residual: no op does that in one")
    if names[0] == attention and any(c.name in norms and c.given is not b.result for b, c in itertools.pairwise(calls)):
        raise _Unfit("its norms follow its sums, and only layers that norm before their attention are fused")
    if names[0] not in norms or calls[0].given is not x or names.index(attention) != 1:
        raise _Unfit("no norm follows a residual sum in it")
    if calls[1].given is not calls[0].result:
        raise _Unfit("its attention does not take the norm's output")
    sums = [i for i in range(2, len(calls)) if calls[i].given is not calls[i - 1].result]
    if len(sums) != 1 or names[sums[0]] not in norms:
        raise _Unfit("no norm follows a residual sum in it")
    (at,) = sums
    if at + 1 >= len(calls):
        raise _Unfit("nothing follows the norm of its residual sum")
    first = _factor(x, calls[at - 1].result, calls[at].given)
    second = _factor(calls[at].given, calls[-1].result, result)
    lost = [k for k, v in given.items() if k != "hidden_states" and calls[1].keywords.get(k) is not v]
    if lost:
        raise _Unfit(f"its attention does not get `{'`, `'.join(lost)}` unchanged")
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    parameters = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    kept_back = {p.name for p in parameters} - calls[1].keywords.keys() - PASSED_OVER
    factor = _attribute(module, first, second)
    found = Block(
        before_attention=names[0],
        attention=attention,
        after_attention=tuple(names[2:at]),
        norm=names[at],
        spec=norms[names[at]],
        first=norms[names[0]],
        fed=fed_linears(trial, calls[1].name, calls[1].given, calls[1].keywords),
        mlp=names[at + 1],
        after_mlp=tuple(names[at + 2 :]),
        factor=factor,
        parameters=tuple(p.name for p in parameters),
        kept_back=frozenset(kept_back),
        checkpoints="gradient_checkpointing" in type(module).forward.__code__.co_names,
        fixed=agreement.numbers(module, factor),
    )

    def replaced(made: Any) -> None:
        prepare(made)
        vars(made)["forward"] = forward_of(found).__get__(made)

    own, replacement = (functools.partial(by, **given) for by in (trial, trial.where(replaced)))
    reason = agreement.difference(replacement(), result)
    return reason or difference_in_training(trial, x.device, own, replacement) or trial.written or found


def _factor(residual: Tensor, part: Tensor, total: Tensor) -> float:
    """The number that makes ``residual + number * part`` the total."""
    if part.numel() != residual.numel() or total.numel() != residual.numel():
        raise _Unfit("its residual sum changes the size")
    part, total = part.reshape(residual.shape), total.reshape(residual.shape)  # OPT joins batch and tokens
    rest = (total - residual).double()
    number = float((rest * part).sum() / part.double().square().sum())
    if agreement.difference((residual + number * part).float(), total) is not None:
        raise _Unfit("what it adds to the residual is not the previous output")
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


class ResidualKind(Kind[Block]):
    """A residual sum and the norm after it, in one op."""

    name = option = "residual"

    def find(self, survey: Survey) -> Iterable[str]:
        """Layers that hold an attention from transformers' registry."""
        return list(_attentions(survey))

    def judge(self, survey: Survey, path: str) -> Block | str | None:
        """Judge one of all layers that differ only in the values of their tensors; None without norms to fuse."""
        attention = _attentions(survey)[path]
        layer, inner = survey.modules[path], survey.modules[attention]
        norms, tables = survey.children_found(NORM, path), survey.tables_of(attention)
        if not norms:
            return None  # as in BERT, whose norms are deeper inside
        if tables is None and rotates(inner):
            return "no module was found that makes cos and sin for the check"
        key = ("residual", agreement.signature_of(layer), layer_kind(inner), tuple(norms.items()))
        return survey.once(key, lambda: _try(survey, path, attention, norms))

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that calls `opmux.add_rms_norm` or `opmux.add_layer_norm`."""
        for path, wired in survey.found(self).items():
            layer = survey.modules[path]
            patch.set(layer, "forward", forward_of(wired).__get__(layer), self.name)

    def op(self, finding: Block) -> str:
        """That of its norm, with the sum."""
        return f"add_{finding.spec.op}"


def _attentions(survey: Survey) -> dict[str, str]:
    """The paths of the layers that hold an attention, with the attention's."""
    paths = [path for path, module in survey.modules.items() if is_candidate(module) and "." in path]
    return {path.rpartition(".")[0]: path for path in paths}


def _try(survey: Survey, path: str, attention: str, norms: dict[str, Norm]) -> Block | str:
    """Judge a layer under transformers' eager attention, which needs nothing but a mask."""
    layer, inner, tables = survey.modules[path], survey.modules[attention], survey.tables_of(attention)
    if agreement.on_meta(layer):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    own, seq, like = vars(inner)["config"], 6, agreement.like(layer)
    hidden = agreement.random(2, seq, own.hidden_size, like=like, dtype=torch.float32)
    future = torch.ones(seq, seq, dtype=torch.bool, device=like.device).triu(1)
    mask = torch.zeros(2, 1, seq, seq, device=like.device).masked_fill(future, torch.finfo(torch.float32).min)
    given = {"hidden_states": hidden, "attention_mask": mask}
    if tables is not None:
        given["position_embeddings"] = make(survey.modules[tables.path], tables.kind_of(inner), seq, torch.float32)
    given |= positions(inner, seq, like.device)
    child, eager = attention.rpartition(".")[2], with_attention(own, "eager")

    def prepare(made: Any) -> None:
        vars(made.get_submodule(child))["config"] = eager
        for mixture in filter(asks_fp8_registry, made.modules()):
            vars(mixture)["config"] = with_eager_experts(vars(mixture)["config"])

    return find_block(layer, child, norms, given, prepare)


RESIDUAL = ResidualKind()
