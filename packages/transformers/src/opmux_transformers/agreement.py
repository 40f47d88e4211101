"""Whether two computations agree: random inputs, a tolerance for each dtype, and a module held still meanwhile.

Whether a module may be replaced is decided in float32, where a changed eps, factor or activation shows; what rounding
does in the model's own dtype is looked at afterwards, with a tolerance that admits one rounding more or less.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference, as a share of the element's own magnitude and of the root mean square of all."""

SEED = 20260


def random(*shape: int, like: Tensor, dtype: torch.dtype, scale: float = 1.0, seed: int = SEED) -> Tensor:
    """Normal random numbers on a tensor's device; the same at every call, and torch's own generators are left alone."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(device=like.device, dtype=dtype)


def distance(got: Tensor, expected: Tensor) -> float | str:
    """The largest difference of two results, relative to their magnitude; or what makes them incomparable."""
    if got.shape != expected.shape:
        return f"its result has the shape {list(expected.shape)}, the replacement's {list(got.shape)}"
    if got.dtype != expected.dtype:
        return f"its result is {expected.dtype}, the replacement's {got.dtype}".replace("torch.", "")
    got, expected = got.double(), expected.double()
    if not bool(torch.isfinite(expected).all()):
        return "it gives NaN or infinity on random input, so that nothing can be compared"
    unit = expected.abs() + expected.square().mean().sqrt()
    error = (got - expected).abs() / unit.clamp_min(torch.finfo(torch.float32).tiny)
    return float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0


def difference(got: Tensor, expected: Tensor) -> str | None:
    """Say how two results differ, or None where they agree within the tolerance of the expected one's dtype."""
    found, tolerance = distance(got, expected), TOLERANCES[expected.dtype]
    if isinstance(found, str):
        return found
    return None if found <= tolerance else _too_far(found, tolerance)


def _too_far(found: float, tolerance: float) -> str:
    far = f"{found:.2g} of its magnitude, more than {tolerance:.0e}"
    return f"on random input it differs from the replacement by {far}"


def closest(expected: Tensor, candidates: Sequence[tuple[Any, Callable[[], Tensor]]]) -> tuple[Any, str]:
    """Find the candidate that agrees best.

    Returns:
        ``(its name, "")``, or ``(None, how the best one differs)`` where none is within the tolerance.
    """
    tolerance = TOLERANCES[expected.dtype]
    found = [(distance(compute(), expected), name) for name, compute in candidates]
    comparable = [(far, name) for far, name in found if not isinstance(far, str)]
    if not comparable:
        return None, next((str(far) for far, _ in found), "nothing that opmux has is like it")
    far, name = min(comparable, key=lambda pair: pair[0])
    return (name, "") if far <= tolerance else (None, _too_far(far, tolerance))


@contextmanager
def whole_float32() -> Iterator[None]:
    """Products of float32 in full precision for a while: TF32 would differ from an op by more than a changed eps."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def still(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients, for a while; every module's own mode is restored."""
    modes = [(child, child.training) for module in modules for child in module.modules()]
    try:
        for child, _ in modes:
            child.training = False
        with (
            whole_float32(),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            yield
    finally:
        for child, mode in modes:
            child.training = mode


def random_state(module: nn.Module) -> dict[str, Tensor]:
    """Random float32 values for the module's parameters, large enough that activations and softmaxes are not linear.

    A model's own values may hide what it computes: weights of one, zeros, or scores so small that every softmax is
    flat. Quantised weights keep theirs.
    """
    state = {}
    for seed, (name, parameter) in enumerate(module.named_parameters()):
        if not parameter.is_floating_point() or parameter.element_size() < 2:
            continue  # a quantised weight means something only as it is
        fan_in = parameter.shape[-1] if parameter.ndim > 1 else 1
        scale = 2.0 / fan_in**0.5 if parameter.ndim > 1 else 0.5
        state[name] = random(*parameter.shape, like=parameter, dtype=torch.float32, scale=scale, seed=SEED + seed)
    return state


def call(module: nn.Module, state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """The module's result with these parameters instead of its own."""
    return functional_call(module, state, args, kwargs)


def signature_of(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must share for one check to decide for both: everything but the values of their tensors."""

    def plain(value: Any) -> Any:
        return value if isinstance(value, (bool, int, float, str, type(None))) else id(value)

    def own(child: nn.Module) -> tuple[Any, ...]:
        hidden = {"_parameters", "_buffers", "_modules", "training"}
        names = getattr(inspect.unwrap(type(child).forward), "__code__", own.__code__).co_names
        if "layer_idx" not in names or "update" in names:  # nothing reads it, or the cache's update does
            hidden.add("layer_idx")
        attributes = tuple((k, plain(v)) for k, v in sorted(vars(child).items()) if k not in hidden and not _empty(v))
        tensors = (*child._parameters.items(), *child._buffers.items())
        return (
            type(child),
            attributes,
            tuple((k, tuple(t.shape), t.dtype, t.device) for k, t in tensors if t is not None),
            tuple((k, own(c)) for k, c in child._modules.items() if c is not None),
        )

    return own(module)


def _empty(value: Any) -> bool:
    """Hooks and the like, of which every module has dictionaries of its own."""
    return isinstance(value, (Mapping, set, list, tuple)) and not value
