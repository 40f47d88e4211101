"""Small plugins for tests: made in a line, loaded for a while."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from opmux.plugin import Implementation, Priority, hookimpl
from opmux.plugins.loading import temporary_plugin


def plugin(*implementations: Implementation, version: Any = 1, **hooks: Callable[[], Any]) -> Any:
    """A plugin object that yields these implementations; other hooks by name."""

    @hookimpl
    def opmux_implementations() -> list[Implementation]:
        return list(implementations)

    members = {"opmux_implementations": opmux_implementations} | {n: hookimpl(h) for n, h in hooks.items()}
    return SimpleNamespace(OPMUX_API_VERSION=version, **members)


def implementation(target: Any, op: str = "rms_norm", **fields: Any) -> Implementation:
    """An implementation of rms_norm, unless said otherwise."""
    return Implementation(op=op, target=target, **{"priority": Priority.PORTABLE, **fields})


@contextmanager
def backends(**by_name: Any) -> Iterator[None]:
    """Load backends for a while: each an Implementation, a list of them, or a plugin object."""
    with ExitStack() as stack:
        for name, given in by_name.items():
            if isinstance(given, Implementation):
                given = plugin(given)
            elif isinstance(given, (list, tuple)):
                given = plugin(*given)
            stack.enter_context(temporary_plugin(given, name, f"opmux-{name}", "1.2.3"))
        yield
