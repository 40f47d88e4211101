"""What the core calls for a linear layer: makes the results, reads the tensors as operands, launches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opmux_triton.devices import units
from opmux_triton.gemm import vector_kernels
from opmux_triton.gemm.configs import ColumnsConfig, LinearConfig, VectorConfig, VectorsConfig
from opmux_triton.gemm.operands import Operand, matrix_of, rows_of
from opmux_triton.gemm.products import product
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated, scratch


def linear_by(run: Callable[[Tensor, Tensor, Tensor | None, Tensor, Any], None]) -> Callable[..., Tensor]:
    """A target of `linear`: ``run(x, w, bias, out, config)`` launches what fills a result that is not empty."""

    def linear(
        x: Tensor, w: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None, config: Any
    ) -> Tensor:
        """The op `linear`, with a result in x's dtype."""
        out = x.new_empty((*x.shape[:-1], w.shape[0]))
        if out.numel() == 0:
            return out
        given, results = (x, w) if bias is None else (x, w, bias), (out,)
        key = ("linear", id(config), x.shape, bias is None)
        if repeated(key, given, results):
            return out
        with kept(key, given, results, config):
            run(x, w, bias, out, config)
        return out

    return linear


def linear_backward_by(product: Callable[..., None]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """A target of `linear_backward`: ``product`` is called like `opmux_triton.gemm.products.product`."""

    def linear_backward(
        grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...], config: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The op `linear_backward`."""
        n, k = w.shape
        shapes = (x.shape, (n, k), (n,))
        grads = tuple(w.new_empty(shape if of else 0) for shape, of in zip(shapes, output_mask, strict=True))
        grad_x, grad_w, grad_bias = grads
        results = tuple(grad for grad, of in zip(grads, output_mask, strict=True) if of)
        key = ("linear backward", id(config), x.shape, output_mask)
        if repeated(key, (grad_out, x, w), results):
            return grad_x, grad_w, grad_bias
        with kept(key, (grad_out, x, w), results, config):
            rows = rows_of(grad_out, False)
            tokens = 0 if 0 in grad_out.shape[:-1] else rows.rows
            if grad_x.numel():
                product(rows, matrix_of(w, True), None, grad_x, (tokens, k, n), config.grad_x)
            if grad_w.numel():
                operands = (rows._replace(rows_are_k=True), rows_of(x, True))
                product(*operands, None, grad_w, (n, k, tokens), config.grad_w)
            if grad_bias.numel():
                _column_sums(rows, tokens, grad_bias, config.grad_bias)
        return grad_x, grad_w, grad_bias

    return linear_backward


def _run(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, config: LinearConfig) -> None:
    n, k = w.shape
    vector, tiles = config.vector, config.tiles
    if vector is not None:
        transposed = w.stride(0) == 1 and w.stride(1) != 1
        if vector.otherwise is None or not transposed:
            _vector(x, w, bias, out, vector)
            return
        tiles = vector.otherwise
    rows = rows_of(x, False)
    if config.vectors is not None:
        if rows.col == 1 and w.stride(1) == 1 and not rows.is_folded:
            _vectors(rows, w, bias, out, config.vectors)
            return
        tiles = config.vectors.otherwise
    assert tiles is not None
    product(rows, matrix_of(w, False), bias, out, (out.numel() // n, n, k), tiles)


linear = linear_by(_run)
linear_backward = linear_backward_by(product)


def _vector(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: VectorConfig) -> None:
    """One row of x: every row of w is read once, by one program."""
    n, k = w.shape
    meta = {
        "HAS_BIAS": bias is not None,
        "EVEN": k % c.block_k == 0,
        "ROWS": c.rows,
        "BLOCK_K": c.block_k,
        "num_warps": c.num_warps,
    }
    arguments = (w, x, out, bias, n, k, w.stride(0), w.stride(1), x.stride(-1))
    launch(vector_kernels.vector_product, (-(-n // c.rows),), arguments, meta)


def _vectors(x: Operand, w: Tensor, bias: Tensor | None, out: Tensor, c: VectorsConfig) -> None:
    """A few rows of x: every row of w is read once, by one program."""
    n, k = w.shape
    meta = {
        "HAS_BIAS": bias is not None,
        "EVEN": k % (c.block_k * c.blocks) == 0,
        "VECTORS": x.rows,
        "ROWS": c.rows,
        "BLOCK_K": c.block_k,
        "BLOCKS": c.blocks,
        "num_warps": c.num_warps,
    }
    arguments = (w, x.tensor, out, bias, n, k, w.stride(0), x.row)
    launch(vector_kernels.vector_products, (-(-n // c.rows),), arguments, meta)


def _column_sums(rows: Operand, tokens: int, sums: Tensor, c: ColumnsConfig) -> None:
    """Sums of the columns: of parts of the rows first, in float32, then of the parts."""
    columns, x = rows.columns, rows.tensor
    across = -(-columns // c.block)
    each = max(c.rows, -(-tokens // max(1, c.waves * units(x) // across)))
    parts = -(-tokens // each)
    meta = {"FOLDED": rows.is_folded, "ROWS": c.rows, "BLOCK": c.block, "num_warps": c.num_warps}
    strides = (rows.inner, rows.outer, rows.row, rows.col)
    if parts <= 1:
        launch(vector_kernels.column_sums, (across, 1), (x, sums, tokens, columns, each, *strides), meta)
        return
    partial = scratch((parts, columns), x)
    launch(vector_kernels.column_sums, (across, parts), (x, partial, tokens, columns, each, *strides), meta)
    last = {"FOLDED": False, "ROWS": 16, "BLOCK": 64, "num_warps": 4}
    arguments = (partial, sums, parts, columns, parts, 1 << 30, 0, columns, 1)
    launch(vector_kernels.column_sums, (-(-columns // 64), 1), arguments, last)
