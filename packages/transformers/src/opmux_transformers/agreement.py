"""Whether two computations agree: random inputs, a tolerance for each dtype, and a module held still meanwhile.

Whether a module may be replaced is decided in float32, where a changed eps, factor or activation shows; what rounding
does in the model's own dtype is looked at afterwards, with a tolerance that admits one rounding more or less. And it is
decided twice, the second time in training mode, where a module may drop what it keeps otherwise.
"""

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference, as a share of the element's own magnitude and of the root mean square of all."""

SEED = 20260

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

IN_TRAINING = "it computes something else in training"


def random(*shape: int, like: Tensor, dtype: torch.dtype, scale: float = 1.0, seed: int = SEED) -> Tensor:
    """Normal random numbers on a tensor's device; the same at every call, and torch's own generators are left alone."""
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


def difference_in_training(
    module: nn.Module, device: torch.device, own: Callable[[], Tensor], replacement: Callable[[], Tensor]
) -> str | None:
    """Say whether a module and its replacement differ in training; None where they agree. Within `still`.

    Both start from the same random numbers, and have to draw as many: what a module drops its replacement has to drop,
    and what the children of both drop is the same. torch's generators are left as they were.
    """
    inner = list(module.modules())
    checkpointed = [child for child in inner if vars(child).get("gradient_checkpointing")]
    before = _generators(device)
    try:
        for child in inner:
            child.training = True
        for child in checkpointed:
            vars(child)["gradient_checkpointing"] = False
        expected, drawn = own(), _generators(device)
        _set_generators(device, before)
        agrees = difference(replacement(), expected) is None
        same = all(map(torch.equal, drawn, _generators(device)))
    finally:
        _set_generators(device, before)
        for child in checkpointed:
            vars(child)["gradient_checkpointing"] = True
        for child in inner:
            child.training = False
    return None if agrees and same else IN_TRAINING


def _generators(device: torch.device) -> list[Tensor]:
    """The states of torch's generators on the CPU and on a GPU."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_generators(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def like(module: nn.Module) -> Tensor:
    """A tensor of the module's, on its device: quantised modules may hold buffers and no parameters.

    Raises:
        ValueError: where it holds none.
    """
    found = next(itertools.chain(module.parameters(), module.buffers()), None)
    if found is None:
        raise ValueError("it holds no tensors")
    return found


def on_meta(module: nn.Module) -> bool:
    """Whether a tensor of the module's has no values yet."""
    return any(t.is_meta for t in itertools.chain(module.parameters(), module.buffers()))


def random_state(module: nn.Module, like: Tensor | None = None) -> dict[str, Tensor]:
    """Random float32 values for the module's parameters, large enough that activations and softmaxes are not linear.

    A model's own values may hide what it computes: weights of one, zeros, or scores so small that every softmax is
    flat. Buffers get positive ones, for a factor of one hides too. Quantised modules keep theirs, and so do those that
    hold frequencies.

    Args:
        module: the module.
        like: a tensor on the device where the values are to be; None for that of each parameter.
    """
    kept = {id(t) for child in module.modules() if _means_something(child) for t in _own_tensors(child)}
    state = {}
    for seed, (name, parameter) in enumerate(module.named_parameters()):
        if not parameter.is_floating_point() or parameter.element_size() < 2 or id(parameter) in kept:
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
    """Whether a module's own tensors mean something only as they are: quantised weights, tables' frequencies."""
    if any("inv_freq" in name for name in module._buffers):
        return True
    matrices = (t for t in _own_tensors(module) if t.ndim > 1 and t.dtype != torch.bool)
    return any(not t.is_floating_point() or t.element_size() < 2 for t in matrices)


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    return (t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None)


def call(module: nn.Module, state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """The module's result with these tensors instead of its own; what training writes into buffers stays out."""
    if module.training:
        apart = {k: state.get(k, b).clone() for k, b in module.named_buffers() if k in state or b.ndim < 2}
        state = state | apart
    return functional_call(module, state, args, kwargs)


def unknown_needs(module: nn.Module, given: Collection[str]) -> str | None:
    """Say what a module's forward needs besides what a check gives it; None where it needs nothing."""
    parameters = inspect.signature(inspect.unwrap(type(module).forward)).parameters
    needed = [p.name for p in [*parameters.values()][1:] if p.default is p.empty and p.kind not in _VARIADIC]
    missing = [name for name in needed if name not in given]
    return f"its forward needs `{'`, `'.join(missing)}`, which its check does not know" if missing else None


def numbers(module: nn.Module, *but: str) -> tuple[tuple[str, Any], ...]:
    """The plain numbers of a module that its forward names: what was found holds while they stay as they are.

    Args:
        module: the module.
        but: attributes that a replacement reads in each call.
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
    """Whether numbers of a module are what they were."""
    return all(getattr(module, name, None) == value for name, value in held)


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
