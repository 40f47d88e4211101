"""Products of quantised matrices: sums of codes, multiplied by the scales of their blocks.

Products of codes are summed in float32 within a block of k, multiplied by the two scales, and added up in float32. On
a GPU the references follow torch's own setting for float32 products, as `opmux.ops.gemm` does; codes are exact anyway.
"""

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Quantized, Real, accumulation_dtype
from opmux.ops._scale_pairs import scale_pairs

_REQUIRED = (
    ("n > 0 and k > 0", "a weight has at least one row and one column"),
    scale_pairs("m", "({}, {})", "({}, {})"),
)


def _scaled_product(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, acc: torch.dtype) -> Tensor:
    """Return the product in the accumulation dtype, summed block by block of k."""
    n, k = w.shape
    width = k if x_scale.shape[-1] == 1 else 128
    if w_scale.shape[0] not in (1, n):
        w_scale = w_scale.repeat_interleave(128, 0)[:n]
    out = x.new_zeros((*x.shape[:-1], n), dtype=acc)
    for block, (codes, weights) in enumerate(zip(x.split(width, -1), w.split(width, -1), strict=True)):
        part = codes.to(acc) @ weights.to(acc).T
        out = out + part * x_scale[..., block : block + 1].to(acc) * w_scale[:, block].to(acc)
    return out


@define_op(
    out_dtype={"out": "out_dtype"},
    option_dtypes={"out_dtype": Real},
    same_dtype=(("x", "w"),),
    require=_REQUIRED,
    flops="2 * batch * m * n * k",
)
def scaled_linear(
    x: Quantized[Tensor, "*batch m k"],
    w: Quantized[Tensor, "n k"],
    x_scale: Float32[Tensor, "*batch m_blocks k_blocks"],
    w_scale: Float32[Tensor, "w_rows w_blocks"],
    bias: Real[Tensor, "n"] | None = None,
    *,
    out_dtype: torch.dtype,
) -> Real[Tensor, "*batch m n"]:
    """Multiply quantised rows by a quantised, transposed weight, and add a bias.

    ``out[t, j] = bias[j] + sum over blocks of x_scale * w_scale * (sum over i in the block of x[t, i] * w[j, i])``: the
    sums of a block and of all blocks are accumulated in float32 (those of a block of int8 may be in int32), and
    rounded once, after the bias. The scales' shapes tell the blocks. Scales are finite: what an infinite one gives is
    left open.

    An 8-bit float product on Hopper's matrix units keeps about 14 bits of a sum: an implementation adds such sums up in
    float32 every 128 columns, unless its record says that its numerics differ.

    Args:
        x: The codes of the rows, ``(*batch, m, k)``.
        w: The codes of the weight, ``(n, k)`` as in `torch.nn.Linear`, in x's dtype.
        x_scale: The scales of x, ``(*batch, 1, 1)`` for each matrix, ``(*batch, m, 1)`` for tokens or
            ``(*batch, m, ceil(k / 128))`` for blocks of 1x128, float32, in any strides.
        w_scale: The scales of w, in the same order ``(1, 1)``, ``(n, 1)`` for channels, and
            ``(ceil(n / 128), ceil(k / 128))`` for blocks of 128x128 or ``(n, ceil(k / 128))`` for 1x128; float32.
        bias: Added to each column of the result, ``(n,)``; None adds nothing.
        out_dtype: The dtype of out.

    Returns:
        out: ``(*batch, m, n)`` in out_dtype.

    Raises:
        InvalidArgument: If the scales are of no such pair of blocks, x and w differ in dtype, n or k is 0, or another
            argument breaks the signature.

    Source:
        DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437.
    """
    acc = accumulation_dtype(out_dtype)
    out = _scaled_product(x, w, x_scale, w_scale, acc)
    if bias is not None:
        out = out + bias.to(acc)
    return out.to(out_dtype).contiguous()


@define_op(
    mutates=("out",),
    same_dtype=(("x", "w"),),
    require=_REQUIRED,
    flops="2 * m * n * k",
)
def scaled_linear_accumulate(
    out: Float32[Tensor, "m n"],
    x: Quantized[Tensor, "m k"],
    w: Quantized[Tensor, "n k"],
    x_scale: Float32[Tensor, "m_blocks k_blocks"],
    w_scale: Float32[Tensor, "w_rows w_blocks"],
) -> None:
    """Add the product of quantised matrices to a float32 tensor, as gradients of weights are gathered.

    ``out += scaled_linear(x, w, x_scale, w_scale)``, accumulated in float32: the product is not rounded before it is
    added.

    Args:
        out: What is added to, ``(m, n)`` float32; written to.
        x: The codes of the rows, ``(m, k)``.
        w: The codes of the weight, ``(n, k)``, in x's dtype.
        x_scale: The scales of x, as in `scaled_linear`.
        w_scale: The scales of w, as in `scaled_linear`.

    Raises:
        InvalidArgument: If the scales are of no pair of blocks that `scaled_linear` takes, n or k is 0, out requires
            grad, or another argument breaks the signature.

    Source:
        DeepSeek-AI, "DeepSeek-V3 Technical Report", section 3.3, 2024, https://arxiv.org/abs/2412.19437.
    """
    out += _scaled_product(x, w, x_scale, w_scale, out.dtype)
