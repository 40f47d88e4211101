"""Matrix products by the BLAS that torch was built with: cuBLASLt, hipBLASLt, oneDNN or MKL."""

import math

import torch
from torch import Tensor


def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``opmux.linear`` as one product of matrices, with the bias as its epilogue.

    The rows of x become one matrix first: for three dims or more `torch.nn.functional.linear` may add the bias in a
    second kernel, after the product has been rounded.
    """
    if out_dtype is not None:
        return _unrounded(x, w, bias, out_dtype, out)
    if out is None and x.dim() == 2:
        return torch.nn.functional.linear(x, w, bias)  # the same product, without views in Python
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


def _unrounded(x: Tensor, w: Tensor, bias: Tensor | None, out_dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """Compute a product of 16-bit matrices whose sums stay in float32.

    A kernel of its own adds the bias: what the library's epilogue does with a bias of 16 bits and such a result is not
    documented. No sum has been rounded to 16 bits by then.
    """
    n, k = w.shape
    rows = x.reshape(math.prod(x.shape[:-1]), k)
    if out is not None and out.is_contiguous():
        made = torch.mm(rows, w.t(), out_dtype=out_dtype, out=out.view(rows.shape[0], n))
    else:
        made = torch.mm(rows, w.t(), out_dtype=out_dtype)
    if bias is not None:
        made += bias
    result = made.view(*x.shape[:-1], n)
    if out is None:
        return result
    if not out.is_contiguous():
        out.copy_(result)
    return out


def linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``opmux.linear_backward``: a product for each gradient that is wanted, and a sum for the bias."""
    wants_x, wants_w, wants_bias = output_mask
    if x.dim() != 2:
        tokens = math.prod(x.shape[:-1])
        flat = grad_out.reshape(tokens, w.shape[0]), x.reshape(tokens, w.shape[1])
        grad_x, grad_w, grad_bias = linear_backward(*flat, w, output_mask=output_mask)
        return grad_x.view(x.shape) if wants_x else grad_x, grad_w, grad_bias
    return (
        torch.mm(grad_out, w) if wants_x else x.new_empty(0),
        torch.mm(grad_out.t(), x) if wants_w else x.new_empty(0),
        grad_out.sum(dim=0) if wants_bias else x.new_empty(0),
    )
