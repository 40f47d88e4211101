"""Keys of kernels in Triton's cache that do not depend on what a process compiled before.

Triton's key of a kernel has the global constants of the functions that it calls, but only of those whose own keys were
computed before: a function that another kernel has called counts more than one that is called for the first time. So a
kernel that one process compiled may not be found by another that compiles in a different order. Here the keys of a
kernel's functions are computed from the innermost outwards, before its own.
"""

from types import ModuleType
from typing import Any

from triton.runtime.jit import JITFunction

_settled: set[int] = set()
"""The functions whose keys were computed, by id: they belong to modules, and live as long as the process."""


def settle(kernel: Any) -> None:
    """Compute the key of a kernel after those of the functions that it calls.

    Args:
        kernel: a function under ``triton.jit`` or Gluon's; anything else, as the interpreter's, is left alone.
    """
    if not isinstance(kernel, JITFunction) or id(kernel) in _settled:
        return
    _settled.add(id(kernel))
    for function in called(kernel):
        settle(function)
    _ = kernel.cache_key


def called(kernel: Any) -> list[Any]:
    """The functions that a function names, in the order of their names in its code."""
    names, scope = kernel.fn.__code__.co_names, kernel.fn.__globals__
    found = []
    for name in names:
        value = scope.get(name)
        if isinstance(value, ModuleType):
            members = (getattr(value, member, None) for member in names)
            found += [member for member in members if isinstance(member, JITFunction)]
        elif isinstance(value, JITFunction):
            found.append(value)
    return found
