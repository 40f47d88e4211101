"""Matrix products: the linear layer and its gradients.

Products are accumulated in float32 (float64 for float64 tensors) and rounded once. On a GPU the references
follow torch's own setting for float32 products, `torch.set_float32_matmul_precision`; float16 and bfloat16
operands are exact either way.
"""

import math

import torch
from torch import Tensor

from opmux.definition import Chosen, define_op
from opmux.dtypes import Real, accumulation_dtype

_REQUIRED = (("n > 0 and k > 0", "a weight has at least one row and one column"),)


@define_op(
    out_dtype={"out": Chosen("out_dtype", "x")},
    option_dtypes={"out_dtype": Real},
    same_dtype=(("x", "w", "bias"),),
    require=_REQUIRED,
    gradient="linear_backward",
    flops="2 * tokens * n * k",
)
def linear(
    x: Real[Tensor, "*tokens k"],
    w: Real[Tensor, "n k"],
    bias: Real[Tensor, "n"] | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Real[Tensor, "*tokens n"]:
    """Multiply each row by the transposed weight and add a bias.

    ``out[t, j] = bias[j] + sum over i of x[t, i] * w[j, i]``, accumulated in float32 (in float64 for float64)
    and rounded once, after the bias. With an out_dtype of float32, bfloat16 and float16 tensors give the sum itself.

    The gradient of such a result is rounded to x's dtype, in which `linear_backward` takes it.

    Args:
        x: The rows, ``(*tokens, k)``.
        w: The weight, ``(n, k)`` as in `torch.nn.Linear`, in x's dtype.
        bias: Added to each column of the result, ``(n,)``, in x's dtype; None adds nothing.
        out_dtype: The dtype of out: that of x, which is also what None means, or float32 for an x of bfloat16 or
            float16.

    Returns:
        out: ``(*tokens, n)`` in out_dtype.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, n or k is 0, or out_dtype is another one.

    Source:
        `torch.nn.functional.linear`.
    """
    acc = accumulation_dtype(x.dtype)
    out = x.to(acc) @ w.to(acc).T
    if bias is not None:
        out = out + bias.to(acc)
    return out.to(x.dtype if out_dtype is None else out_dtype).contiguous()


@define_op(
    outputs=("grad_x", "grad_w", "grad_bias"),
    same_dtype=(("grad_out", "x", "w"),),
    require=_REQUIRED,
    flops="2 * tokens * n * k * (output_mask[0] + output_mask[1])",
)
def linear_backward(
    grad_out: Real[Tensor, "*tokens n"],
    x: Real[Tensor, "*tokens k"],
    w: Real[Tensor, "n k"],
    *,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> tuple[Real[Tensor, "*tokens k"], Real[Tensor, "n k"], Real[Tensor, "n"]]:
    """Compute the gradients of `linear`.

    ``grad_x = grad_out @ w``, ``grad_w = grad_out.T @ x`` and ``grad_bias = sum over tokens of grad_out``,
    accumulated in float32 (in float64 for float64) and rounded once.

    Args:
        grad_out: The gradient of out, ``(*tokens, n)``, in x's dtype.
        x: The rows given to `linear`, ``(*tokens, k)``.
        w: The weight given to `linear`, ``(n, k)``, in x's dtype.
        output_mask: Which of (grad_x, grad_w, grad_bias) are wanted.

    Returns:
        grad_x: ``(*tokens, k)`` in x's dtype; ``(0,)`` where masked out.
        grad_w: ``(n, k)`` in x's dtype; ``(0,)`` where masked out.
        grad_bias: ``(n,)`` in x's dtype; ``(0,)`` where masked out.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, or n or k is 0.

    Source:
        The chain rule on `linear`.
    """
    acc = accumulation_dtype(x.dtype)
    n, k = w.shape
    tokens = math.prod(x.shape[:-1])
    grad = grad_out.to(acc).reshape(tokens, n)
    grad_x, grad_w, grad_bias = x.new_empty(0), w.new_empty(0), w.new_empty(0)
    if output_mask[0]:
        grad_x = (grad @ w.to(acc)).to(x.dtype).reshape(x.shape).contiguous()
    if output_mask[1]:
        grad_w = (grad.T @ x.to(acc).reshape(tokens, k)).to(w.dtype).contiguous()
    if output_mask[2]:
        grad_bias = grad.sum(dim=0).to(w.dtype)
    return grad_x, grad_w, grad_bias
