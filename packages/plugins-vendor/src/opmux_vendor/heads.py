"""Layouts of attention: opmux has (batch, seq, heads, head_dim), some libraries (batch, heads, seq, head_dim)."""

from torch import Tensor


def swapped(tensor: Tensor) -> Tensor:
    """The view with dims 1 and 2 exchanged: from one layout to the other."""
    return tensor.transpose(1, 2)


def gradients(
    grads: tuple[Tensor, Tensor, Tensor], output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results of ``attention_backward``: contiguous gradients of q, k and v, an empty tensor for one not wanted.

    The libraries compute all three at once. Sinks, which none of them takes, are absent and have an empty gradient.
    """
    empty = grads[0].new_empty(0)
    wanted = [g.contiguous() if want else empty for g, want in zip(grads, output_mask[:3], strict=True)]
    return wanted[0], wanted[1], wanted[2], grads[0].new_empty(0)
