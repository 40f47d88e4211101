"""Calls of a module on random input, each on a copy of it: a check changes nothing in the model.

A module may write state when it is called: running statistics, observers of quantisation-aware training, a counter. It
may have hooks that log or change what they see. So a check calls copies. A copy has its own buffers and attributes and
no hooks; its parameters are random values, or copies too. Each call gets a fresh copy, so that all calls start from the
same state.
"""

import copy
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from opmux_transformers import agreement, compressed
from opmux_transformers.undo import NOT_COPIED

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
"""Attributes of a module that hold hooks, which a copy must not share: a hook may remove itself when it is called."""
_GLOBAL_HOOKS: tuple[Any, ...] = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
IN_TRAINING = "it computes something different in training"

_LARGE = 4096
"""Elements of a matrix that is not copied for each call."""

_SHARED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, torch.dtype, torch.device, torch.Size)
"""Types whose instances a copy shares."""


@contextmanager
def still() -> Iterator[None]:
    """The context of every check: no gradients, no autocast, full float32 precision, and global module hooks off."""
    held = [dict(hooks) for hooks in _GLOBAL_HOOKS]
    for hooks in _GLOBAL_HOOKS:
        hooks.clear()
    try:
        with (
            agreement.whole_float32(),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            yield
    finally:
        for hooks, before in zip(_GLOBAL_HOOKS, held, strict=True):
            hooks.update(before)


@dataclass
class _Shared:
    """What a trial shares with those made from it."""

    training: bool = False
    written: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Trial:
    """Calls of one module: ``trial(x)`` is ``module(x)``, computed by a copy.

    Attributes:
        module: The module; only read.
        values: What copies hold in place of its tensors, by the tensors' ids. Each copy gets its own copy of the
            buffers here.
        watched: Paths of the children whose state is compared before and after a call; ``""`` is the module.
        prepare: What is done to a copy before it is called.
        child: The child that is called; ``""`` calls the module.
    """

    module: nn.Module
    values: Mapping[int, Tensor]
    watched: Sequence[str] = ("",)
    prepare: Callable[[Any], None] | None = None
    child: str = ""
    shared: _Shared = field(default_factory=_Shared)

    @classmethod
    def random(cls, module: nn.Module, like: Tensor | None = None, watched: Sequence[str] = ("",)) -> "Trial":
        """With random float32 values, as `agreement.random_state` makes them."""
        state = agreement.random_state(module, like)
        return cls._of(module, state, watched)

    @classmethod
    def own(cls, module: nn.Module, **given: Tensor) -> "Trial":
        """With copies of the module's own values, except those given by name."""
        return cls._of(module, given, ())

    @classmethod
    def _of(cls, module: nn.Module, state: Mapping[str, Tensor], watched: Sequence[str]) -> "Trial":
        tensors = [*module.named_parameters(), *module.named_buffers()]
        values = {id(tensor): state[name] if name in state else _copy_of(tensor) for name, tensor in tensors}
        return cls(module, values, watched)

    def where(self, prepare: Callable[[Any], None]) -> "Trial":
        """The same, with a function applied to every copy before it is called."""
        return replace(self, prepare=prepare)

    def of(self, child: str) -> "Trial":
        """Calls of a child instead."""
        return replace(self, child=child, watched=())

    def given(self, name: str, value: Tensor) -> "Trial":
        """The same with another value for one parameter or buffer."""
        return replace(self, values={**self.values, id(_tensor(self.module, name)): value})

    @property
    def written(self) -> str | None:
        """Which of its own attributes the module wrote when it was called, as a reason to leave it; None if none."""
        names = sorted(self.shared.written)
        return f"it writes its own state when it is called: `{'`, `'.join(names)}`" if names else None

    def copy(self) -> Any:
        """A copy that is ready to be called."""
        made = _copy_module(self.module, self.values)
        for child in made.modules():
            child.training = self.shared.training
        if self.prepare is not None:
            self.prepare(made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of one call of a fresh copy."""
        made = self.copy()
        return self.run(made, lambda: made.get_submodule(self.child)(*args, **kwargs))

    def run(self, made: Any, call: Callable[[], Any]) -> Any:
        """The result of ``call``; records what it writes into the watched parts of a copy."""
        own = self.prepare is None or "forward" not in vars(made)  # what a replacement writes does not count
        before = [_state(made.get_submodule(path)) for path in self.watched] if own else []
        result = call()
        for path, earlier in zip(self.watched if own else (), before, strict=True):
            later = _state(made.get_submodule(path))
            changed = (name for name in {**earlier, **later} if not _same(earlier.get(name), later.get(name)))
            self.shared.written.update(f"{path}.{name}".lstrip(".") for name in changed)
        return result


def _tensor(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    inner = module.get_submodule(path)
    return {**inner._parameters, **inner._buffers}[last]  # type: ignore[return-value]


def _copy_module(module: nn.Module, values: Mapping[int, Tensor]) -> nn.Module:
    """A copy of a module and everything it holds, with these values, without hooks and training state."""
    inner = list(module.modules())
    memo: dict[int, Any] = {id(child): type(child).__new__(type(child)) for child in inner}
    for child in inner:
        for tensor in (*child._parameters.values(), *child._buffers.values()):
            if tensor is not None and id(tensor) not in memo:
                value = values[id(tensor)]
                memo[id(tensor)] = value if _is_weight(tensor, value) else _copy_of(value)
    for child in inner:
        own = vars(memo[id(child)])
        for name, value in vars(child).items():
            if name in HOOKS:
                own[name] = type(value)((key, hook) for key, hook in value.items() if _computes_a_weight(hook))
            elif name not in NOT_COPIED:
                own[name] = _copied(value, memo)
        own["_compiled_call_impl"] = None
        if compressed.scheme_of(child) is not None:
            own["quantization_enabled"] = False  # rounding would turn the last bits into visible differences
        if own.get("gradient_checkpointing"):
            own["gradient_checkpointing"] = False
    made: nn.Module = memo[id(module)]
    return made


def _is_weight(tensor: Tensor, value: Tensor) -> bool:
    """Whether all copies may share a tensor: large matrices that are parameters or are not floating-point."""
    return (
        value.numel() >= _LARGE
        and value.ndim > 1
        and (isinstance(tensor, nn.Parameter) or not value.is_floating_point())
    )


def _computes_a_weight(hook: Any) -> bool:
    """Whether a hook is torch's own and computes a weight before each call: pruning, weight norm."""
    return type(hook).__module__.startswith("torch.nn.utils.")


def _copy_of(tensor: Tensor) -> Tensor:
    if type(tensor) in (Tensor, nn.Parameter):
        return tensor.detach().clone()
    try:
        return copy.deepcopy(tensor)
    except Exception:  # a quantiser's tensor subclass that cannot be copied
        return tensor


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of an attribute's value; objects in the memo, or outside the module, are shared."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, (*_SHARED, nn.Module)):
        return value
    made: Any
    if isinstance(value, Tensor):
        made = _copy_of(value)
    elif isinstance(value, types.MethodType):
        made = types.MethodType(value.__func__, _copied(value.__self__, memo))
    elif type(value) is functools.partial:
        keywords = {k: _copied(v, memo) for k, v in value.keywords.items()}
        made = functools.partial(_copied(value.func, memo), *(_copied(v, memo) for v in value.args), **keywords)
    elif type(value) is dict:
        made = {key: _copied(inner, memo) for key, inner in value.items()}
    elif type(value) in (list, tuple, set, deque):
        made = type(value)(_copied(inner, memo) for inner in value)
    else:
        try:
            made = copy.deepcopy(value, memo)
        except Exception:  # a lock, a process group
            made = value
    memo[id(value)] = made
    return made


def _state(module: nn.Module) -> dict[str, Any]:
    """A snapshot of a module's own tensors and attributes."""
    held = {**module._parameters, **module._buffers}
    others = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules", *HOOKS)}
    return {name: _kept(value) for name, value in {**others, **held}.items()}


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _kept(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_kept(inner) for inner in value]
    if isinstance(value, set):
        return frozenset(value)
    return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (bool, int, float, str, frozenset)):
        return one is other or bool(one == other)  # NaN is not equal to itself
    return one is other


def difference_in_training(
    trial: Trial, device: torch.device, own: Callable[[], Tensor], replacement: Callable[[], Tensor]
) -> str | None:
    """How a module and its replacement differ in training; None if they agree.

    Both start from the same random state and must draw the same numbers: a replacement has to drop what the module
    drops. torch's generators are restored.

    Args:
        trial: What both call.
        device: Where they compute.
        own: Calls the module.
        replacement: Calls its replacement.
    """
    before = _generators(device)
    trial.shared.training = True
    try:
        expected, drawn = own(), _generators(device)
        _set_generators(device, before)
        agrees = agreement.difference(replacement(), expected) is None
        same = all(map(torch.equal, drawn, _generators(device)))
    finally:
        _set_generators(device, before)
        trial.shared.training = False
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
