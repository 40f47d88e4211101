"""Threads of torch on the CPU: one for the suite's own computations, all of the process's for calls of a target.

The tensors of most cases are small, so threads cost more than they gain: with many cores, most of the run time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_of_targets: list[int] = []
"""How many threads the process had before `one_thread`, while it is active."""


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
    """Inside `one_thread`, give a target all threads of the process."""
    if not _of_targets:
        yield
        return
    torch.set_num_threads(_of_targets[-1])
    try:
        yield
    finally:
        torch.set_num_threads(1)
