"""Whether another library has changed a module: a forward that is not the class's own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

MARK = "_opmux_replacement"
"""Attribute of every function that replaces a forward."""

PATCHERS = frozenset(
    {"apex", "flash_attn", "liger_kernel", "tilegym", "transformer_engine", "unsloth", "unsloth_zoo", "xformers"}
)
"""Kernel packages that replace transformers' classes with their own."""


def mark(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as opmux's own."""
    setattr(function, MARK, True)
    return function


def is_marked(function: Any) -> bool:
    """Whether a function or method is opmux's own."""
    return bool(getattr(getattr(function, "__func__", function), MARK, False))


def whose_forward(module: nn.Module) -> str | None:
    """Who replaced the module's forward; None if it is the one from the class definition."""
    own = vars(module).get("forward")
    if own is not None:
        function = getattr(own, "__func__", own)
        if is_marked(function):
            return "already patched by opmux, as part of another model"
        return f"already patched: its forward was replaced by {_name(function)}"
    for cls in type(module).__mro__:
        if "forward" in vars(cls):
            function = inspect.unwrap(vars(cls)["forward"])
            home = getattr(function, "__globals__", {}).get("__name__", cls.__module__)
            if home != cls.__module__:
                return f"already patched: the forward of class {cls.__name__} was replaced by {_name(function)}"
            return None
    return None


def whose_class(path: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Which of `PATCHERS` the class of a module in a transformers model comes from; None if from none of them.

    Args:
        path: the module's path.
        modules: all modules of the model, by path.
    """
    package = _package(next((cls for cls in type(modules[path]).__mro__ if "forward" in vars(cls)), nn.Module))
    if package not in PATCHERS:
        return None
    while path:
        path = path.rpartition(".")[0]
        holder = _package(type(modules[path])) if path in modules else "torch"
        if holder not in (package, "torch"):  # a ModuleList is torch's own class, whatever it holds
            return f"already patched: its class comes from {package}" if holder == "transformers" else None
    return None


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def whose_hooks(module: nn.Module) -> str | None:
    """Which hooks see the module's input and output, since a replacement might bypass them; None if there are none."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    names = sorted({_name(hook) for hook in hooks if "transformers.utils.output_capturing" not in _name(hook)})
    return f"hooks see its input or output: {', '.join(names)}" if names else None


def behind(function: Any) -> Any:
    """The function that a module calls which stands in its place, or the given object if it is anything else.

    Where the package ``kernels`` is installed, transformers makes such modules of functions that a hub's kernel may
    replace. One whose forward was replaced is given back as it is.
    """
    if not isinstance(function, nn.Module) or "forward" in vars(function):
        return function
    forward = type(function).forward
    held = inspect.getclosurevars(forward).nonlocals if inspect.isfunction(forward) else {}
    functions = [value for value in held.values() if inspect.isfunction(value)]
    return functions[0] if len(functions) == 1 else function


def home_package(function: Any) -> str:
    """The top-level package that a function or callable was defined in."""
    home = getattr(inspect.unwrap(function) if callable(function) else function, "__module__", None)
    return (home or type(function).__module__).partition(".")[0]


def _name(function: Any) -> str:
    where = getattr(function, "__module__", None) or type(function).__module__
    return f"{where}.{getattr(function, '__qualname__', type(function).__qualname__)}"
