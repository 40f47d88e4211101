"""Replicas of ``torch.nn.DataParallel``, which copy a module's attributes: a forward must be bound to the replica.

transformers' `Trainer` makes them if one process sees several GPUs. A replaced forward is bound to the module that it
was made for; in a replica, the copied attribute would compute with that module's parameters.
"""

from types import MethodType

from torch import nn

from opmux_transformers.coded import Kept
from opmux_transformers.undo import Patch

METHOD = "_replicate_for_data_parallel"
"""torch's method that copies one module for a replica."""


def follow_replicas(module: nn.Module, patch: Patch) -> None:
    """Rebind, in a module's replicas, the methods that were set on it, and give them codes of their own."""
    if hasattr(type(module), METHOD) and METHOD not in vars(module):
        patch.set(module, METHOD, _replicate.__get__(module))


def _replicate(self: nn.Module) -> nn.Module:
    replica: nn.Module = getattr(type(self), METHOD)(self)
    for name, value in vars(self).items():
        if isinstance(value, MethodType) and value.__self__ is self:
            vars(replica)[name] = value.__func__.__get__(replica)
        elif isinstance(value, Kept):
            vars(replica)[name] = value.for_replica()
    return replica
