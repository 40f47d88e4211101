"""Guards: one native call that tells whether tensors are like those that a plan was made for.

"Like" means: the same classes, dtypes, devices, ranks, layouts and dispatch keys, no gradient due, and the same
state of torch's dispatcher: autocast, inference mode, functorch levels. torch's own compiler makes the same check
before it runs compiled code, with a native object (`torch._C._dynamo.guards.TensorGuards`); in Python the check costs
four times as much. That object is not public, so it is tested once. A Python guard takes its place where it does not
answer as expected, and where one tensor is given twice, which the native guard never accepts.

A guard made while gradients were off does not notice that they are on again, since it compares only ``requires_grad``.
Where a tensor requires a gradient, the caller checks the grad mode as well.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Guard = Callable[..., bool]


def never(*tensors: Any) -> bool:
    """A guard that matches no tensors."""
    return False


def make_guard(tensors: Sequence[Tensor], exact: bool = False) -> Guard:
    """A function that tells whether as many tensors are like these: with any sizes and strides, or ``exact`` ones."""
    repeated = len({id(t) for t in tensors}) < len(tensors)
    if repeated or not _native_answers_as_expected():
        return _in_python(tensors, exact)
    made = _native(tensors, exact)
    kind = tensors[0].device.type
    if kind not in _tells_autocast:
        _tells_autocast[kind] = kind == "cpu" or _sees_autocast(made, tensors)
    return made if _tells_autocast[kind] else _in_python(tensors, exact)


_tells_autocast: dict[str, bool] = {}
"""Device type -> whether the native guard notices autocast on that device; for the CPU, `_try_native` tests it."""


def _sees_autocast(made: Guard, tensors: Sequence[Tensor]) -> bool:
    kind = tensors[0].device.type
    with torch.autocast(kind, enabled=not torch.is_autocast_enabled(kind)):
        return not made(*tensors)


def _native(tensors: Sequence[Tensor], exact: bool = False) -> Guard:
    sizes: Any = [[*t.shape] if exact else [None] * t.dim() for t in tensors]
    strides: Any = [[*t.stride()] if exact else [None] * t.dim() for t in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Guard = guards.check
    return check


@functools.cache
def _native_answers_as_expected() -> bool:
    """Test the native guard on what it must tell apart, in a neutral state, whatever the caller's state is."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch._C.DisableTorchFunction(),
    ):
        return _try_native()


def _try_native() -> bool:
    x = torch.empty(2, 3, dtype=torch.float32, device="cpu")
    weight = torch.empty(3, dtype=torch.float32, device="cpu")
    try:
        same, exactly = _native((x, weight)), _native((x, weight), exact=True)
        alike = same(x.new_empty(7, 5), x.new_empty(4)) and exactly(x.clone(), weight.clone())
        different = [
            exactly(x.new_empty(7, 3), weight),
            exactly(x.new_empty(3, 2).T, weight),
            same(x.double(), weight),
            same(x.flatten(), weight),
            same(x, weight.clone().requires_grad_()),
            same(x, torch.nn.Parameter(weight.clone(), requires_grad=False)),
            same(x.to("meta"), weight),
            same(x.to_sparse(), weight),
            same(torch._neg_view(x), weight),
        ]
        with torch.inference_mode():
            different.append(same(x, weight))
            made = x.clone()
        different.append(same(made, weight))
        with torch.autocast("cpu"):
            different.append(same(x, weight))
    except (AttributeError, TypeError, ImportError, RuntimeError):
        return False
    return alike is True and not any(different)


def _ambient() -> tuple[Any, ...]:
    return (
        torch.is_inference_mode_enabled(),
        torch._C._is_any_autocast_enabled(),
        torch._C._functorch.peek_interpreter_stack() is None,
    )


def _facts(tensor: Any, exact: bool) -> tuple[Any, ...]:
    due = torch.is_grad_enabled() and tensor.requires_grad
    form = (tensor.shape, tensor.stride()) if exact else tensor.dim()
    keys = torch._C._dispatch_keys(tensor).raw_repr()  # a negated view has one, a batched tensor, one of inference mode
    return tensor.__class__, tensor.dtype, tensor.device, form, tensor.layout, due, keys


def _in_python(tensors: Sequence[Tensor], exact: bool = False) -> Guard:
    ambient, facts = _ambient(), [_facts(t, exact) for t in tensors]

    def same(*given: Any) -> bool:
        return ambient == _ambient() and all(
            isinstance(t, Tensor) and _facts(t, exact) == wanted for t, wanted in zip(given, facts, strict=True)
        )

    return same
