"""Replicas of ``torch.nn.DataParallel``, which copy a module's attributes: a forward must be the replica's own.

transformers' `Trainer` makes them where one process sees several GPUs. A replacement of a forward is bound to the
module that it was made for; in a replica, the copied attribute would compute with that module's parameters.
"""

from types import MethodType

from torch import nn

from opmux_transformers.undo import Patch

METHOD = "_replicate_for_data_parallel"
"""torch's method that copies one module of a replica."""


def follow_replicas(module: nn.Module, patch: Patch) -> None:
    """Give a module's replicas their own bound methods for those that were set on it."""
    if hasattr(type(module), METHOD) and METHOD not in vars(module):
        patch.set(module, METHOD, _replicate.__get__(module))


def _replicate(self: nn.Module) -> nn.Module:
    replica: nn.Module = getattr(type(self), METHOD)(self)
    for name, value in vars(self).items():
        if isinstance(value, MethodType) and value.__self__ is self:
            vars(replica)[name] = value.__func__.__get__(replica)
    return replica
