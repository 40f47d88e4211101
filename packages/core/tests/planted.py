"""Targets that tests plant as implementations of rms_norm, and a call to try them on."""

import torch

import opmux
from opmux.plugin import Priority

X, W = torch.randn(4, 8), torch.randn(8)
WANTED = opmux.rms_norm.reference(X, W)


def returning(value):
    """A target that returns this."""

    def target(x, weight, *, eps, weight_offset):
        return value(x) if callable(value) else value

    return target


def raising(error):
    """A target that raises this."""

    def target(x, weight, *, eps, weight_offset):
        raise error

    return target


SPECIAL = Priority.SPECIALISED


ones = returning(torch.ones_like)


def reasons(op=opmux.rms_norm, *tensors):
    return {c.name: (c.status, c.reason) for c in opmux.explain(op, *(tensors or (X, W))).candidates}


def filled(value):
    """A target that returns this number everywhere."""
    return returning(lambda x: torch.full_like(x, value))
