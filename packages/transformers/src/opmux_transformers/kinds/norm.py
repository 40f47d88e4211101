"""RMS norms: found by their single weight, verified numerically, replaced by `opmux.rms_norm`.

A norm's eps may be in any attribute, and its weight may be stored around 0 (Gemma). Both are found by trial: the
check's rows are small enough for eps to matter, and its weight is random.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
_LARGE = 1e3
"""Factor on rows and weight in a second check, which finds clamped values."""


@dataclass(frozen=True)
class Norm:
    """How a module is an RMS norm.

    Attributes:
        eps: The attribute that holds its eps.
        offset: What is added to its weight.
        fixed: Other numbers that its forward reads; the finding holds while they do not change.
    """

    eps: str
    offset: float
    fixed: tuple[tuple[str, Any], ...] = ()

    def eps_of(self, module: nn.Module) -> float:
        """The module's current eps."""
        return float(getattr(module, self.eps))


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
        How it is an RMS norm, or why it is left unchanged.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    if module._parameters.get("bias") is not None:
        return "it has a bias, so it is not an RMS norm"
    weight: Tensor = module._parameters["weight"]  # type: ignore[assignment]
    if weight.is_meta:
        return "it is on the meta device, where nothing can be checked: load the weights first"
    epses = _epses(module)
    if not epses:
        return "it has no eps"
    try:
        with still():
            return _judge(module, weight, epses, dtype)
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _judge(module: nn.Module, weight: Tensor, epses: dict[str, float], dtype: torch.dtype) -> Norm | str:
    hidden = weight.shape[0]
    gain = agreement.random(hidden, like=weight, dtype=torch.float32, seed=1)
    trial = Trial.random(module).given("weight", gain)
    x = agreement.random(len(_ROW_SCALES), hidden, like=weight, dtype=torch.float32)
    x = x * x.new_tensor(_ROW_SCALES).unsqueeze(-1)
    expected = trial(x)

    def candidate(eps: float, offset: float) -> Callable[[], Tensor]:
        return lambda: opmux.rms_norm(x, gain, eps=eps, weight_offset=offset)

    tried = [((name, offset), candidate(eps, offset)) for name, eps in epses.items() for offset in OFFSETS]
    best, far = agreement.closest(expected, tried)
    if best is None:
        return far
    name, offset = best
    found = Norm(name, offset, agreement.numbers(module, name))
    eps = found.eps_of(module)
    got = opmux.rms_norm(_LARGE * x, _LARGE * gain, eps=eps, weight_offset=offset)
    reason = agreement.difference(got, trial.given("weight", _LARGE * gain)(_LARGE * x))
    own = functools.partial(trial, x)
    reason = reason or difference_in_training(trial, x.device, own, candidate(eps, offset)) or trial.written
    if reason is not None:
        return reason
    x = x.to(dtype)
    got = opmux.rms_norm(x, weight, eps=eps, weight_offset=offset)
    return agreement.difference(got, Trial.own(module)(x)) or found


@functools.cache
def forward_of(norm: Norm) -> Callable[..., Tensor]:
    """The forward that replaces such a module's own."""
    eps, offset, fixed = norm.eps, norm.offset, norm.fixed

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        # given more than the input, or with changed numbers, it may compute something different
        if len(args) != 1 or kwargs or (fixed and not agreement.unchanged(self, fixed)):
            result: Tensor = type(self).forward(self, *args, **kwargs)
            return result
        return opmux.rms_norm(args[0], weight_of(self), eps=getattr(self, eps), weight_offset=offset)

    return mark(forward)


def weight_of(module: nn.Module) -> Tensor:
    """The module's weight, read from its parameters: ``__getattr__`` of a module takes longer than many views."""
    weight = module._parameters.get("weight")
    return module.weight if weight is None else weight  # type: ignore[return-value]  # replicas of DataParallel


class NormKind(Kind[Norm]):
    """RMS norms."""

    name = option = "norm"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules that hold what a norm holds, and norms whose weight is computed."""
        return (path for path, m in survey.modules.items() if is_candidate(m) or weight_is_computed(m))

    def judge(self, survey: Survey, path: str) -> Norm | str:
        """Judge one of all norms that differ only in the values of their tensors."""
        module = survey.modules[path]
        if not is_candidate(module):
            return "its weight is computed in every call, or is not a parameter"
        return survey.once(("norm", agreement.signature_of(module)), lambda: find_norm(module, survey.dtype))

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that calls `opmux.rms_norm`."""
        for path, spec in survey.found(self).items():
            module = survey.modules[path]
            patch.set(module, "forward", forward_of(spec).__get__(module), self.name)

    def op(self, finding: Norm) -> str:
        """Always the same one."""
        return "rms_norm"


NORM = NormKind()
