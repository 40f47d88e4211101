"""Gated MLPs: two projections and an activation, separate or packed, verified numerically.

The linears remain the model's own modules and are called as modules, so quantised and adapted ones keep working. One op
replaces what lies between them.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.calls import all_are_watched, call, call_as_module, may_be_fed, watched
from opmux_transformers.coded import codes_of
from opmux_transformers.fed import gated, product, products
from opmux_transformers.foreign import mark, whose_forward, whose_hooks
from opmux_transformers.joint import joint_of
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.norm import takes_one_input
from opmux_transformers.recomputed import RECOMPUTED, projected
from opmux_transformers.survey import Survey
from opmux_transformers.trial import Trial, difference_in_training, still
from opmux_transformers.undo import Patch

APART: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu_mul": opmux.silu_mul,
    "gelu_mul": opmux.gelu_mul,
    "gelu_mul(tanh)": functools.partial(opmux.gelu_mul, approximate="tanh"),
}
PACKED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu_and_mul": opmux.silu_and_mul,
    "gelu_and_mul": opmux.gelu_and_mul,
    "gelu_and_mul(tanh)": functools.partial(opmux.gelu_and_mul, approximate="tanh"),
}

GATED = "_opmux_gate"
"""Attribute of a forward that computes a gated MLP: its `Gate`."""

_SWIGLU = "silu_and_mul"
_AS_PACKED = dict(zip(APART, PACKED, strict=True))
"""The op for both halves side by side, by that for halves apart."""
_LARGE = 100.0
"""Factor on the input of a second check, which finds clamped values."""


@dataclass(frozen=True)
class Gate:
    """How a module is a gated MLP: its children by name, and the op between them.

    Attributes:
        inputs: The gate and the up projection, or the packed one alone.
        output: The down projection.
        op: A name in `APART` or `PACKED`.
        between: The other children, with their classes: the activation, which the op replaces.
        fixed: Numbers that the forwards of the module and of those children read, by the child's name (empty for the
            module's own); the finding holds while they do not change.
    """

    inputs: tuple[str, ...]
    output: str
    op: str
    between: tuple[tuple[str, type], ...]
    fixed: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    def holds(self, module: nn.Module) -> bool:
        """Whether what the op replaces is still there, unchanged and without hooks."""
        for name, cls in self.between:
            child = module._modules.get(name)
            if child is None or type(child) is not cls or "forward" in child.__dict__ or watched(child):
                return False
        return not self.fixed or all(agreement.unchanged(module.get_submodule(name), held) for name, held in self.fixed)


def layouts(module: nn.Module) -> list[tuple[tuple[str, ...], str]]:
    """The ways in which a module's linears could form a gated MLP; empty if it holds anything else."""
    linears: dict[str, Any] = {k: c for k, c in module._modules.items() if c is not None and is_linear(c)}
    others = [c for k, c in module._modules.items() if c is not None and k not in linears]
    if len(linears) not in (2, 3) or module._parameters or any(_holds_tensors(c) for c in others):
        return []
    if not takes_one_input(module) or _takes_a_mask(module):
        return []
    found: list[tuple[tuple[str, ...], str]] = []
    for first, second in itertools.permutations(linears, 2):
        into, out = linears[first], linears[second]
        if len(linears) == 2 and into.out_features == 2 * out.in_features and into.in_features == out.out_features:
            found.append(((first,), second))
        if len(linears) == 3 and (into.in_features, into.out_features) == (out.in_features, out.out_features):
            (last,) = linears.keys() - {first, second}
            if (linears[last].out_features, linears[last].in_features) == (into.in_features, into.out_features):
                found.append(((first, second), last))
    # if all three are square, any of them could be the last: try the likely one first
    return sorted(found, key=lambda layout: "down" not in layout[1])


def is_linear(child: Any) -> bool:
    """Whether a child states its numbers of input and output features, as torch's and the quantisers' linears do."""
    return isinstance(getattr(child, "in_features", None), int) and isinstance(
        getattr(child, "out_features", None), int
    )


def _takes_a_mask(module: nn.Module) -> bool:
    """Whether a module is an attention, whose projections may have the shapes of an MLP's."""
    return any("mask" in name for name in inspect.signature(type(module).forward).parameters)


def _holds_tensors(child: nn.Module) -> bool:
    return next(itertools.chain(child.parameters(), child.buffers()), None) is not None


def find_gate(module: nn.Module, dtype: torch.dtype) -> Gate | str:
    """Judge a module that has `layouts` on random input.

    Returns:
        How it is a gated MLP, or why it is left unchanged.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    tensors = [*module.parameters(), *module.buffers()]
    if any(t.is_meta for t in tensors):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    for name, child in module.named_children():
        if not is_linear(child) and (hooks := whose_hooks(child)) is not None:
            return f"{name} would be bypassed: {hooks}"
    try:
        with still():
            return _judge(module, tensors[0], dtype)
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _judge(module: nn.Module, like: Tensor, dtype: torch.dtype) -> Gate | str:
    """Judge what lies between the linears in float32, with plain linears in their places."""
    reason = "no op of opmux matches it"
    for inputs, output in layouts(module):
        linears = {*inputs, output}
        between = tuple((name, type(c)) for name, c in module.named_children() if name not in linears)
        trial = Trial.random(_with_plain_linears(module), like, ("", *(name for name, _ in between)))
        first: Any = module._modules[inputs[0]]
        x = agreement.random(3, first.in_features, like=like, dtype=torch.float32)
        expected = trial(x)
        if not isinstance(expected, Tensor):
            return "it returns more than one tensor, so it is not a gated MLP"
        candidates = _candidates(trial, inputs, output, x)
        op, reason = agreement.closest(expected, list(candidates.items()))
        if op is None:
            continue
        large = _candidates(trial, inputs, output, _LARGE * x)[op]()
        reasons = (
            agreement.difference(large, trial(_LARGE * x)),
            difference_in_training(trial, x.device, functools.partial(trial, x), candidates[op]),
            trial.written,
            _difference_of_real_linears(module, inputs, output, op, x.to(dtype)),
        )
        numbers = [("", agreement.numbers(module))]
        numbers += [(name, agreement.numbers(module.get_submodule(name))) for name, _ in between]
        found = Gate(inputs, output, op, between, tuple((name, held) for name, held in numbers if held))
        return next((reason for reason in reasons if reason is not None), found)
    return reason


def _with_plain_linears(module: nn.Module) -> nn.Module:
    """A module like this one, with its other children, and with uninitialised torch linears in place of its own."""
    made = type(module).__new__(type(module))
    vars(made).update(vars(module))
    vars(made)["_modules"] = {name: _plain(c) if is_linear(c) else c for name, c in module._modules.items()}
    return made


def _plain(linear: Any) -> nn.Linear:
    with_bias = getattr(linear, "bias", None) is not None
    return nn.Linear(linear.in_features, linear.out_features, bias=with_bias, device="meta")


def _difference_of_real_linears(
    module: nn.Module, inputs: tuple[str, ...], output: str, op: str, x: Tensor
) -> str | None:
    """Compare using the module's own linears, as far as rounding permits; None if they are torch's own, or opmux's."""
    if all(type(c) is nn.Linear or codes_of(c) is not None for c in module.children() if is_linear(c)):
        return None
    trial = Trial.own(module)
    return agreement.difference(_candidates(trial, inputs, output, x)[op](), trial(x))


def _candidates(trial: Trial, inputs: tuple[str, ...], output: str, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The module's result with each op between its linears."""
    ops: dict[str, Callable[..., Tensor]] = APART if len(inputs) == 2 else PACKED

    def compute(op: Callable[..., Tensor]) -> Tensor:
        result: Tensor = trial.of(output)(op(*(trial.of(name)(x) for name in inputs)))
        return result

    return {name: functools.partial(compute, op) for name, op in ops.items()}


@functools.cache
def forward_of(gate: Gate) -> Callable[..., Tensor]:
    """The forward that replaces such a module's own."""
    last = gate.output
    approximate = {"approximate": "tanh"} if gate.op.endswith("(tanh)") else {}
    name = gate.op.removesuffix("(tanh)")
    op = getattr(opmux, name)
    if len(gate.inputs) == 2:
        first, second = gate.inputs

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
            if len(args) != 1 or kwargs or not gate.holds(self):
                return own(self, *args, **kwargs)
            everything, children = all_are_watched(), self._modules
            ask = call_as_module if everything else call
            both = products((children[first], children[second]), args[0]) if not everything or may_be_fed() else None
            one, other = both or (ask(children[first], args[0]), ask(children[second], args[0]))
            again = RECOMPUTED in self.__dict__ and not everything
            made = projected(name, approximate, (one, other), children[last]) if again else None
            result: Tensor = ask(children[last], op(one, other, **approximate)) if made is None else made
            return result
    else:
        (packed,) = gate.inputs

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
            if len(args) != 1 or kwargs or not gate.holds(self):
                return own(self, *args, **kwargs)
            everything = all_are_watched()
            children: dict[str, Any] = self._modules
            ask = call_as_module if everything else call
            both = ask(children[packed], args[0])
            made = gated(children[last], both) if gate.op == _SWIGLU and (not everything or may_be_fed()) else None
            if made is None and RECOMPUTED in self.__dict__ and not everything:
                made = projected(name, approximate, (both,), children[last])
            result: Tensor = ask(children[last], op(both, **approximate)) if made is None else made
            return result

    def own(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = type(self).forward(self, *args, **kwargs)
        return result

    setattr(forward, GATED, gate)
    return mark(forward)


def gate_of(module: Any) -> Gate | None:
    """How a module is a gated MLP, if its forward is opmux's and calling it would do nothing else."""
    gate = getattr(getattr(vars(module).get("forward"), "__func__", None), GATED, None)
    return gate if gate is not None and not watched(module) and gate.holds(module) else None


def of_codes(gate: Gate, module: Any, q: Tensor, scale: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The result of such a module whose input linears take these codes, ``(*shape)`` in this dtype."""
    children, op = module._modules, gate.op
    joint = joint_of(module, gate.inputs)
    if joint is None:
        parts = [product(children[name], q, scale, shape, dtype) for name in gate.inputs]
    else:
        both = joint.product(q, scale, dtype)
        parts, op = [both.view(*shape[:-1], both.shape[-1])], _AS_PACKED[op]
    if op == _SWIGLU and (fed := gated(children[gate.output], parts[0])) is not None:
        return fed
    ops: dict[str, Callable[..., Tensor]] = {**APART, **PACKED}
    ask = call_as_module if all_are_watched() else call
    result: Tensor = ask(children[gate.output], ops[op](*parts))
    return result


class GateKind(Kind[Gate]):
    """Gated activations of MLPs."""

    name = option = "gate"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules whose linears could be those of a gated MLP."""
        return (path for path, module in survey.modules.items() if layouts(module))

    def judge(self, survey: Survey, path: str) -> Gate | str:
        """Judge one of all MLPs that differ only in the values of their tensors."""
        module = survey.modules[path]
        return survey.once(("gate", agreement.signature_of(module)), lambda: find_gate(module, survey.dtype))

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that calls its op between its linears."""
        for path, form in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, "forward", forward_of(form).__get__(module), self.name)

    def op(self, finding: Gate) -> str:
        """The op between its linears."""
        return finding.op


GATE = GateKind()
