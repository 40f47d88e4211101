"""What the core calls for a linear layer: makes the results, reads the tensors as operands, launches."""

from typing import Any

from torch import Tensor

from opmux_triton.devices import units
from opmux_triton.gemm import vector_kernels
from opmux_triton.gemm.operands import Operand, matrix_of, rows_of
from opmux_triton.gemm.products import product
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated, scratch

Config = dict[str, Any]


def linear(x: Tensor, w: Tensor, bias: Tensor | None, *, config: Config) -> Tensor:
    """The op `linear`."""
    n, k = w.shape
    out = x.new_empty((*x.shape[:-1], n))
    size = out.numel()
    if size == 0:
        return out
    given, results = (x, w) if bias is None else (x, w, bias), (out,)
    key = ("linear", id(config), x.shape, bias is None)
    if repeated(key, given, results):
        return out
    with kept(key, given, results, config):
        if config["kind"] == "vector":
            _vector(x, w, bias, out, config)
        else:
            product(rows_of(x, False), matrix_of(w, False), bias, out, (size // n, n, k), config)
    return out


def linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, *, output_mask: tuple[bool, ...], config: Config
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
            product(rows, matrix_of(w, True), None, grad_x, (tokens, k, n), config["grad_x"])
        if grad_w.numel():
            operands = (rows._replace(rows_are_k=True), rows_of(x, True))
            product(*operands, None, grad_w, (n, k, tokens), config["grad_w"])
        if grad_bias.numel():
            _column_sums(rows, tokens, grad_bias, config["grad_bias"])
    return grad_x, grad_w, grad_bias


def _vector(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Config) -> None:
    """One row of x: every row of w is read once, by one program."""
    n, k = w.shape
    meta = {
        "HAS_BIAS": bias is not None,
        "EVEN": k % c["block_k"] == 0,
        "ROWS": c["rows"],
        "BLOCK_K": c["block_k"],
        "num_warps": c["num_warps"],
    }
    arguments = (w, x, out, bias, n, k, w.stride(0), w.stride(1), x.stride(-1))
    launch(vector_kernels.vector_product, (-(-n // c["rows"]),), arguments, meta)


def _column_sums(rows: Operand, tokens: int, sums: Tensor, c: Config) -> None:
    """Sums of the columns: of parts of the rows first, in float32, then of the parts."""
    columns, x = rows.columns, rows.tensor
    across = -(-columns // c["block"])
    each = max(c["rows"], -(-tokens // max(1, c["waves"] * units(x) // across)))
    parts = -(-tokens // each)
    meta = {"FOLDED": rows.is_folded, "ROWS": c["rows"], "BLOCK": c["block"], "num_warps": c["num_warps"]}
    strides = (rows.inner, rows.outer, rows.row, rows.col)
    if parts <= 1:
        launch(vector_kernels.column_sums, (across, 1), (x, sums, tokens, columns, each, *strides), meta)
        return
    partial = scratch((parts, columns), x)
    launch(vector_kernels.column_sums, (across, parts), (x, partial, tokens, columns, each, *strides), meta)
    last = {"FOLDED": False, "ROWS": 16, "BLOCK": 64, "num_warps": 4}
    arguments = (partial, sums, parts, columns, parts, 1 << 30, 0, columns, 1)
    launch(vector_kernels.column_sums, (-(-columns // 64), 1), arguments, last)
