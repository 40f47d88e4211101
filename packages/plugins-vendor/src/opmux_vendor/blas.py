"""Matrix products by the BLAS that torch was built with: cuBLASLt, hipBLASLt, oneDNN or MKL."""

import math

import torch
from torch import Tensor


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, out: Tensor | None = None) -> Tensor:
    """Compute ``opmux.linear`` as one product of matrices, with the bias as its epilogue.

    The rows of x become one matrix first: for three dims or more `torch.nn.functional.linear` may add the bias in a
    second kernel, after the product has been rounded.
    """
    n, k = w.shape
    rows = x.reshape(math.prod(x.shape[:-1]), k)
    flat = None if out is None or not out.is_contiguous() else out.view(rows.shape[0], n)
    if bias is None:
        made = torch.mm(rows, w.t()) if flat is None else torch.mm(rows, w.t(), out=flat)
    else:
        made = torch.addmm(bias, rows, w.t()) if flat is None else torch.addmm(bias, rows, w.t(), out=flat)
    result = made.view(*x.shape[:-1], n)
    if out is None:
        return result
    if flat is None:
        out.copy_(result)
    return out


def linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``opmux.linear_backward``: a product for each gradient that is wanted, and a sum for the bias."""
    n, k = w.shape
    tokens = math.prod(x.shape[:-1])
    grad = grad_out.reshape(tokens, n)
    grad_x, grad_w, grad_bias = (x.new_empty(0) for _ in range(3))
    if output_mask[0]:
        grad_x = torch.mm(grad, w).view(x.shape)
    if output_mask[1]:
        grad_w = torch.mm(grad.t(), x.reshape(tokens, k))
    if output_mask[2]:
        grad_bias = grad.sum(dim=0)
    return grad_x, grad_w, grad_bias
