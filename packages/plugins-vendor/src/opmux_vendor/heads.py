"""Layouts of attention: opmux has (batch, seq, heads, head_dim), some libraries (batch, heads, seq, head_dim)."""

from torch import Tensor


def swapped(tensor: Tensor) -> Tensor:
    """The view with dims 1 and 2 exchanged: from one layout to the other."""
    return tensor.transpose(1, 2)
