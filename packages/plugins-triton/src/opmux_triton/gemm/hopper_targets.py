"""What the core calls for a linear layer on sm_90 where the Gluon kernel computes a product of it."""

from torch import Tensor

from opmux_triton.gemm.configs import HopperConfig
from opmux_triton.gemm.hopper_products import product
from opmux_triton.gemm.operands import matrix_of, rows_of
from opmux_triton.gemm.targets import linear_backward_by, linear_by


def _run(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: HopperConfig) -> None:
    n, k = w.shape
    product(rows_of(x, False), matrix_of(w, False), bias, out, (out.numel() // n, n, k), c)


linear = linear_by(_run)
linear_backward = linear_backward_by(product)
