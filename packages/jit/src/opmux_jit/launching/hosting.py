"""Launches on tensors of the CPU, as on those of a device that an emulator plays."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Host = Callable[[tuple[Any, ...]], AbstractContextManager[None]]
"""Opened around each launch on memory of the CPU, with the launch's arguments: an emulator's registers them."""

_hosts: list[Host] = []


@contextmanager
def hosted(host: Host) -> Iterator[None]:
    """Within it, kernels are launched on tensors of the CPU too, on device 0 of a HIP library that plays one."""
    _hosts.append(host)
    try:
        yield
    finally:
        _hosts.pop()


def current_host() -> Host | None:
    """The innermost host, or None."""
    return _hosts[-1] if _hosts else None
