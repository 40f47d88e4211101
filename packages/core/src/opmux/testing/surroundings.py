"""The context in which cases run, named as ``module:function`` so that other processes can open it too."""

import contextlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from opmux.errors import InvalidArgument


@contextlib.contextmanager
def surroundings(name: str | None) -> Iterator[None]:
    """Open the context that ``module:function(argument)`` names; nothing where it is None.

    An emulator's makes the CPU pass for an arch (`opmux.arch.cpu_plays`) and executes what targets launch.

    Args:
        name: ``module:function``, or ``module:function(text)``; the function takes the text and returns a context.

    Raises:
        InvalidArgument: if there is no such function, or its module cannot be imported.
    """
    if name is None:
        yield
        return
    with _opened(name):
        yield


def _opened(name: str) -> AbstractContextManager[Any]:
    path, _, argument = name.removesuffix(")").partition("(")
    try:
        function: Callable[..., AbstractContextManager[Any]] = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"conformance: `within` expected module:function or module:function(text), got {name!r}: {error}"
        ) from None
    return function(argument) if argument else function()
