"""Whether two computations agree: random input, a tolerance for each dtype, and which modules one check covers.

Whether a module may be replaced is decided in float32, where a different eps, factor or activation shows. The model's
own dtype is checked afterwards, with a tolerance of about one rounding. `trial` makes the calls.
"""

import inspect
import itertools
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers import compressed
from opmux_transformers.coded import codes_of
from opmux_transformers.registries import asks_fp8_registry

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference, as a fraction of the element's own magnitude plus the root mean square of all elements."""

SEED = 20260

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def random(*shape: int, like: Tensor, dtype: torch.dtype, scale: float = 1.0, seed: int = SEED) -> Tensor:
    """Normal random numbers on a tensor's device: the same at every call, without touching torch's own generators."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(device=like.device, dtype=dtype)


def distance(got: Tensor, expected: Tensor) -> float | str:
    """The largest difference of two results, relative to their magnitude; or what makes them incomparable."""
    if got.shape != expected.shape:
        return f"its result has the shape {list(expected.shape)}, the replacement's {list(got.shape)}"
    if got.dtype != expected.dtype:
        return f"its result is {expected.dtype}, the replacement's {got.dtype}".replace("torch.", "")
    got, expected = got.double(), expected.double()
    if not bool(torch.isfinite(expected).all()):
        return "it gives NaN or infinity on random input, so nothing can be compared"
    unit = expected.abs() + expected.square().mean().sqrt()
    error = (got - expected).abs() / unit.clamp_min(torch.finfo(torch.float32).tiny)
    return float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0


def difference(got: Tensor, expected: Tensor) -> str | None:
    """How two results differ; None if they agree within the tolerance of the expected result's dtype."""
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
        ``(its name, "")``, or ``(None, how the best one differs)`` if none is within the tolerance.
    """
    tolerance = TOLERANCES[expected.dtype]
    found = [(distance(compute(), expected), name) for name, compute in candidates]
    comparable = [(far, name) for far, name in found if not isinstance(far, str)]
    if not comparable:
        return None, next((str(far) for far, _ in found), "no op of opmux matches it")
    far, name = min(comparable, key=lambda pair: pair[0])
    return (name, "") if far <= tolerance else (None, _too_far(far, tolerance))


@contextmanager
def whole_float32() -> Iterator[None]:
    """Full precision for float32 products: TF32 would differ from an op by more than a different eps does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def like(module: nn.Module) -> Tensor:
    """A tensor of the module's, on its device: quantised modules may hold buffers and no parameters.

    Raises:
        ValueError: if it holds none.
    """
    found = next(itertools.chain(module.parameters(), module.buffers()), None)
    if found is None:
        raise ValueError("it holds no tensors")
    return found


def on_meta(module: nn.Module) -> bool:
    """Whether a tensor of the module's has no values yet."""
    return any(t.is_meta for t in itertools.chain(module.parameters(), module.buffers()))


def random_state(module: nn.Module, like: Tensor | None = None) -> dict[str, Tensor]:
    """Random float32 values for the module's parameters, large enough to make activations and softmaxes nonlinear.

    A model's own values may hide what it computes: weights of one, zeros, or scores so small that every softmax is
    flat. Buffers get positive random values, because a factor of one would be invisible. Quantised modules and modules
    that hold frequencies keep their values, except linears whose codes opmux multiplies, and experts of fine-grained
    fp8: `coded` says why.

    Args:
        module: the module.
        like: a tensor on the device for the values; None means each parameter's own device.
    """
    kept = {id(t) for child in module.modules() if _means_something(child) for t in _own_tensors(child)}
    coded = {id(child._parameters.get("weight")) for child in module.modules() if codes_of(child) is not None}
    mixtures = (child for child in module.modules() if asks_fp8_registry(child))
    coded |= {id(p) for child in mixtures for p in child._parameters.values() if p is not None and p.element_size() < 2}
    state = {}
    for seed, (name, parameter) in enumerate(module.named_parameters()):
        plain = parameter.is_floating_point() and parameter.element_size() > 1 and id(parameter) not in kept
        if not plain and id(parameter) not in coded:
            continue
        fan_in = parameter.shape[-1] if parameter.ndim > 1 else 1
        scale = 2.0 / fan_in**0.5 if parameter.ndim > 1 else 0.5
        where = parameter if like is None else like
        state[name] = random(*parameter.shape, like=where, dtype=torch.float32, scale=scale, seed=SEED + seed)
    for seed, (name, buffer) in enumerate(module.named_buffers()):
        if not buffer.is_floating_point() or buffer.element_size() < 2 or id(buffer) in kept:
            continue
        where = buffer if like is None else like
        values = random(*buffer.shape, like=where, dtype=torch.float32, scale=0.5, seed=SEED - 1 - seed)
        state[name] = values.abs() + 0.5
    return state


def _means_something(module: nn.Module) -> bool:
    """Whether a module's tensors cannot be replaced by random values: quantised weights, frequencies of tables."""
    if any("inv_freq" in name for name in module._buffers):
        return True
    matrices = (t for t in _own_tensors(module) if t.ndim > 1 and t.dtype != torch.bool)
    return any(not t.is_floating_point() or t.element_size() < 2 for t in matrices)


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    return (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


def unknown_needs(module: nn.Module, given: Collection[str]) -> str | None:
    """What a module's forward needs beyond what a check provides; None if it needs nothing else."""
    missing = [p.name for p in _not_given(module, given) if p.default is p.empty]
    return f"its forward needs `{'`, `'.join(missing)}`, which a check cannot provide" if missing else None


def raised(module: nn.Module, given: Collection[str], error: Exception) -> str:
    """Why a module whose forward raised on random input is left unchanged.

    Args:
        module: the module.
        given: the names of what it was called with.
        error: what it raised.
    """
    absent = [p.name for p in _not_given(module, given) if p.default is None]
    if absent and "NoneType" in str(error):  # the error mentions None: probably an argument that the forward requires
        return f"its forward may need `{'`, `'.join(absent)}`, which a check cannot provide"
    if any(compressed.waits(child) for child in module.modules()):
        return "it calls linears that are compressed, which compute nothing before the model's first call"
    return f"its forward raises {type(error).__name__} on the input of a check"


def _not_given(module: nn.Module, given: Collection[str]) -> list[inspect.Parameter]:
    parameters = inspect.signature(inspect.unwrap(type(module).forward)).parameters
    return [p for p in [*parameters.values()][1:] if p.kind not in _VARIADIC and p.name not in given]


def numbers(module: nn.Module, *but: str) -> tuple[tuple[str, Any], ...]:
    """The plain numbers of a module that its forward names: a finding holds while they do not change.

    Args:
        module: the module.
        but: attributes that a replacement reads at each call.
    """
    passed_over = {"training", "gradient_checkpointing", "layer_idx", "inplace", *but}
    named: set[str] = set()
    waiting = ["forward"]
    while waiting:
        functions = [vars(cls).get(waiting[-1]) for cls in type(module).__mro__ if cls is not nn.Module]
        waiting.pop()
        for function in functions:
            code = getattr(inspect.unwrap(function), "__code__", None) if inspect.isfunction(function) else None
            new = {*code.co_names} - named if code is not None else set()
            named |= new
            waiting += new
    held = ((k, v) for k, v in vars(module).items() if k in named - passed_over)
    return tuple((k, v) for k, v in held if isinstance(v, (bool, int, float)))


def unchanged(module: nn.Module, held: tuple[tuple[str, Any], ...]) -> bool:
    """Whether these numbers of a module have not changed."""
    return all(getattr(module, name, None) == value for name, value in held)


def signature_of(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must have in common so that one check covers both: all but the values of their tensors."""

    def plain(value: Any) -> Any:
        if isinstance(value, types.MethodType):
            function = value.__func__
            alone = isinstance(function, types.FunctionType) and not (function.__closure__ or function.__defaults__)
            return id(function.__code__ if alone else function)  # one may be made again for each module
        return value if isinstance(value, (bool, int, float, str, type(None))) else id(value)

    def own(child: nn.Module) -> tuple[Any, ...]:
        hidden = {"_parameters", "_buffers", "_modules", "training"}
        names = getattr(inspect.unwrap(type(child).forward), "__code__", own.__code__).co_names
        if "layer_idx" not in names or "update" in names:  # read by nothing, or only by the cache's update
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
    """Empty containers: every module has its own dictionaries for hooks and the like."""
    return isinstance(value, (Mapping, set, list, tuple)) and not value
