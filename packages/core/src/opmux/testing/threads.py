"""Threads of torch on the CPU: one for what the suite computes itself, all of the process's for a target's calls.

The tensors of most cases are small, and threads cost them more than they give: with many cores, most of the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_of_targets: list[int] = []
"""How many threads the process had before `one_thread`, while it is in force."""


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute with one thread, if the tensors are on the CPU."""
    count = torch.get_num_threads()
    if device.type != "cpu" or count == 1:
        yield
        return
    torch.set_num_threads(1)
    _of_targets.append(count)
    try:
        yield
    finally:
        _of_targets.pop()
        torch.set_num_threads(count)


@contextmanager
def all_threads() -> Iterator[None]:
    """Inside of `one_thread`, give a target the threads that the process has."""
    if not _of_targets:
        yield
        return
    torch.set_num_threads(_of_targets[-1])
    try:
        yield
    finally:
        torch.set_num_threads(1)
