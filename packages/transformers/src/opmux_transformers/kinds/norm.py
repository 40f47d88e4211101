"""Norms of the last dim: found by their weight, verified numerically, replaced by an op of opmux.

Whether it is an RMS norm or a layer norm, which attribute holds its eps, and whether its weight is stored around 0
(Gemma, Nemotron) is found by trial: the check's rows are small enough for eps to matter, and its weight is random.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux_transformers import agreement
from opmux_transformers.foreign import mark, whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.trial import Trial, difference_in_training, still
from opmux_transformers.undo import Patch

OFFSETS = (0.0, 1.0)
_LARGEST_EPS = 0.1
_ROW_SCALES = (1.0, 1e-2, 1e-3, 30.0)
"""Magnitudes of the check's rows. In the small ones an eps of 1e-6 is as large as the mean square."""
_SHIFT = 0.5
"""Mean of the check's rows, relative to their magnitude: a layer norm subtracts it, an RMS norm does not."""
_LARGE = 1e3
"""Factor on rows and weight in a second check, which finds clamped values."""


@dataclass(frozen=True)
class Norm:
    """What norm a module is.

    Attributes:
        op: ``"rms_norm"`` or ``"layer_norm"``.
        eps: The attribute that holds its eps.
        offset: What is added to its weight.
        biased: Whether it has a bias.
        fixed: Other numbers that its forward reads; the finding holds while they do not change.
    """

    op: str
    eps: str
    offset: float
    biased: bool = False
    fixed: tuple[tuple[str, Any], ...] = ()

    def of(self, module: nn.Module, x: Tensor) -> Tensor:
        """The op, with the module's current weights and eps."""
        return self.compute(x, weight_of(module), self._bias_of(module), getattr(module, self.eps))

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """The op."""
        if self.op == "rms_norm":
            return opmux.rms_norm(x, weight, eps=eps, weight_offset=self.offset)
        return opmux.layer_norm(x, self._gain(weight), bias, eps=eps)

    def of_sum(self, module: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of a residual sum, and the sum, in one op."""
        eps, weight = getattr(module, self.eps), weight_of(module)
        if self.op == "rms_norm":
            return opmux.add_rms_norm(x, residual, weight, eps=eps, weight_offset=self.offset)
        return opmux.add_layer_norm(x, residual, self._gain(weight), self._bias_of(module), eps=eps)

    def holds(self, module: nn.Module) -> bool:
        """Whether the module's numbers are still those of the check."""
        return not self.fixed or agreement.unchanged(module, self.fixed)

    def _gain(self, weight: Tensor) -> Tensor:
        """The weight that multiplies; `opmux.layer_norm` has no offset, so the sum is rounded as in the module."""
        return weight + self.offset if self.offset else weight

    def _bias_of(self, module: nn.Module) -> Tensor | None:
        if not self.biased:
            return None
        bias = module._parameters.get("bias")
        return module.bias if bias is None else bias  # type: ignore[return-value]  # replicas of DataParallel


def is_candidate(module: nn.Module) -> bool:
    """Whether a module could be a norm: it holds one-dimensional tensors only, and takes one input."""
    tensors = {name: p for name, p in module._parameters.items() if p is not None}
    return (
        not module._modules
        and "weight" in tensors
        and set(tensors) <= {"weight", "bias"}
        and all(p.ndim == 1 and p.numel() > 1 and p.is_floating_point() for p in tensors.values())
        and takes_one_input(module)
    )


def weight_is_computed(module: nn.Module) -> bool:
    """Whether a module looks like a norm except that its weight is not a parameter: parametrised, pruned."""
    if "weight" in module._parameters or module._modules.keys() - {"parametrizations"} or not takes_one_input(module):
        return False
    parametrised = isinstance(module._modules.get("parametrizations"), nn.ModuleDict)
    if not _epses(module) or not (parametrised or "weight" in vars(module)):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 1


def weight_has_dims(module: nn.Module) -> bool:
    """Whether a module looks like a norm except that its weight has several dims: one row for each head (Cohere)."""
    weight = module._parameters.get("weight")
    alone = not module._modules and module._parameters.keys() <= {"weight", "bias"} and takes_one_input(module)
    return alone and weight is not None and weight.ndim > 1 and bool(_epses(module))


def _epses(module: nn.Module) -> dict[str, float]:
    return {k: float(v) for k, v in vars(module).items() if isinstance(v, float) and 0 < v < _LARGEST_EPS}


def takes_one_input(module: nn.Module) -> bool:
    """Whether the forward of the module's class needs exactly one argument."""
    try:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 1 and all(p.default is not p.empty for p in positional[1:])


def find_norm(module: nn.Module, dtype: torch.dtype) -> Norm | str:
    """Judge a candidate on random input.

    Args:
        module: a module that `is_candidate` accepts.
        dtype: the dtype of the model's activations.

    Returns:
        What norm it is, or why it is left unchanged.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    bias = module._parameters.get("bias")
    weight: Tensor = module._parameters["weight"]  # type: ignore[assignment]
    if weight.is_meta:
        return "it is on the meta device, where nothing can be checked: load the weights first"
    epses = _epses(module)
    if not epses:
        return "it has no eps"
    if bias is not None and bias.dtype != weight.dtype:
        return f"its bias is {bias.dtype}, its weight {weight.dtype}".replace("torch.", "")
    try:
        with still():
            return _judge(module, weight, epses, dtype)
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _judge(module: nn.Module, weight: Tensor, epses: dict[str, float], dtype: torch.dtype) -> Norm | str:
    hidden = weight.shape[0]
    gain = agreement.random(hidden, like=weight, dtype=torch.float32, seed=1)
    bias = None
    trial = Trial.random(module).given("weight", gain)
    if module._parameters.get("bias") is not None:
        bias = agreement.random(hidden, like=weight, dtype=torch.float32, seed=2)
        trial = trial.given("bias", bias)
    # three dims: a norm of groups or of channels computes something different for them
    x = _SHIFT + agreement.random(2, len(_ROW_SCALES), hidden, like=weight, dtype=torch.float32)
    x = x * x.new_tensor(_ROW_SCALES).unsqueeze(-1)
    expected = trial(x)

    def candidate(found: Norm, x: Tensor = x, gain: Tensor = gain) -> Callable[[], Tensor]:
        return lambda: found.compute(x, gain, bias, epses[found.eps])

    ops = ("rms_norm", "layer_norm") if bias is None else ("layer_norm",)
    tried = [Norm(op, name, offset, bias is not None) for op in ops for name in epses for offset in OFFSETS]
    best, far = agreement.closest(expected, [(norm, candidate(norm)) for norm in tried])
    if best is None:
        return far
    found = replace(best, fixed=agreement.numbers(module, best.eps))
    got = candidate(found, _LARGE * x, _LARGE * gain)()
    reason = agreement.difference(got, trial.given("weight", _LARGE * gain)(_LARGE * x))
    own = functools.partial(trial, x)
    reason = reason or difference_in_training(trial, x.device, own, candidate(found)) or trial.written
    if reason is not None:
        return reason
    x = x[0].to(dtype)
    return agreement.difference(found.of(module, x), Trial.own(module)(x)) or found


@functools.cache
def forward_of(norm: Norm) -> Callable[..., Tensor]:
    """The forward that replaces such a module's own."""
    fixed, of = norm.fixed, norm.of

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        # given more than the input, or with changed numbers, it may compute something different
        if len(args) != 1 or kwargs or (fixed and not agreement.unchanged(self, fixed)):
            result: Tensor = type(self).forward(self, *args, **kwargs)
            return result
        return of(self, args[0])

    return mark(forward)


def weight_of(module: nn.Module) -> Tensor:
    """The module's weight, read from its parameters: ``__getattr__`` of a module takes longer than many views."""
    weight = module._parameters.get("weight")
    return module.weight if weight is None else weight  # type: ignore[return-value]  # replicas of DataParallel


class NormKind(Kind[Norm]):
    """RMS norms and layer norms."""

    name = option = "norm"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules that hold what a norm holds, and norms whose weight is computed or has several dims."""
        looks = (is_candidate, weight_is_computed, weight_has_dims)
        return (path for path, m in survey.modules.items() if any(look(m) for look in looks))

    def judge(self, survey: Survey, path: str) -> Norm | str:
        """Judge one of all norms that differ only in the values of their tensors."""
        module = survey.modules[path]
        if weight_has_dims(module):
            return "its weight has several dims, that of an op has one"
        if not is_candidate(module):
            return "its weight is computed in every call, or is not a parameter"
        return survey.once(("norm", agreement.signature_of(module)), lambda: find_norm(module, survey.dtype))

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that calls its op."""
        for path, spec in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, "forward", forward_of(spec).__get__(module), self.name)

    def op(self, finding: Norm) -> str:
        """Which norm it is."""
        return finding.op


NORM = NormKind()
