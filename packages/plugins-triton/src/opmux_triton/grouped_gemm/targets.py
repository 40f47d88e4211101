"""What the core calls for grouped products: makes the results, launches."""

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opmux.dtypes import name_of
from opmux_triton.descriptors import ALIGNMENT
from opmux_triton.devices import is_native, units
from opmux_triton.grouped_gemm import kernels
from opmux_triton.grouped_gemm.configs import GroupedBackwardConfig, GroupedConfig, ScaledGroupedConfig
from opmux_triton.launch import as_bytes, launch
from opmux_triton.repeats import kept, repeated


def grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: GroupedConfig,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `grouped_linear`."""
    out = x.new_empty((x.shape[0], w.shape[1])) if out is None else out
    if out.numel() and w.shape[0]:
        _noted("grouped_linear", (x, w, group_offsets), (group_sizes,), out, config)
    return out


def masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, *, expected_m: int, config: GroupedConfig, out: Tensor | None = None
) -> Tensor:
    """The op `masked_grouped_linear`."""
    out = x.new_empty((*x.shape[:2], w.shape[1])) if out is None else out
    if out.numel():
        _noted("masked_grouped_linear", (x, w, masked_m), (), out, config)
    return out


def scaled_grouped_linear(
    x: Tensor, w: Tensor, group_offsets: Tensor, x_scale: Tensor, w_scale: Tensor, group_sizes: Tensor | None,
    *, out_dtype: torch.dtype, config: GroupedConfig, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_grouped_linear`."""
    out = x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype) if out is None else out
    if out.numel() and w.shape[0]:
        _noted("scaled_grouped_linear", (x, w, group_offsets, x_scale, w_scale), (group_sizes,), out, config)
    return out


def scaled_masked_grouped_linear(
    x: Tensor, w: Tensor, masked_m: Tensor, x_scale: Tensor, w_scale: Tensor,
    *, expected_m: int, out_dtype: torch.dtype, config: GroupedConfig, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The op `scaled_masked_grouped_linear`."""
    out = x.new_empty((*x.shape[:2], w.shape[1]), dtype=out_dtype) if out is None else out
    if out.numel():
        _noted("scaled_masked_grouped_linear", (x, w, masked_m, x_scale, w_scale), (), out, config)
    return out


def grouped_linear_backward(
    grad_out: Tensor, x: Tensor, w: Tensor, group_offsets: Tensor, group_sizes: Tensor | None,
    *, output_mask: tuple[bool, ...], config: GroupedBackwardConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `grouped_linear_backward`."""
    grad_x = x.new_empty(x.shape if output_mask[0] else 0)
    grad_w = w.new_empty(w.shape if output_mask[1] else 0)
    if grad_x.numel():
        _zero_unused(grad_x, group_offsets, group_sizes)
        if w.shape[0]:
            _product(grad_out, w.mT, group_offsets, group_sizes, None, None, grad_x, config.grad_x)
    if grad_w.numel():
        _weight_sums(grad_w, grad_out, x, group_offsets, group_sizes, False, config.grad_w)
    return grad_x, grad_w


def grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, group_sizes: Tensor | None, *, config: GroupedConfig
) -> None:
    """The op `grouped_weight_grad`."""
    if out.numel() and x.shape[0]:
        _weight_sums(out, dy, x, group_offsets, group_sizes, True, config)


def scaled_grouped_weight_grad(
    out: Tensor, dy: Tensor, x: Tensor, group_offsets: Tensor, dy_scale: Tensor, x_scale: Tensor,
    group_sizes: Tensor | None, *, config: ScaledGroupedConfig,
) -> None:  # fmt: skip
    """The op `scaled_grouped_weight_grad`."""
    if not out.numel() or not x.shape[0]:
        return
    groups, n, k = out.shape
    offsets, sizes = dense(group_offsets, group_sizes)
    meta: dict[str, Any] = {
        "PADDED": sizes is not None,
        "FORMAT": name_of(x.dtype),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP": config.group,
    }
    tiles = groups * -(-n // config.block_m) * -(-k // config.block_n)
    strides = (*dy.stride(), *x.stride(), *out.stride(), *dy_scale.stride(), *x_scale.stride())
    arguments = (as_bytes(dy), as_bytes(x), out, dy_scale, x_scale, offsets, sizes, n, k, *strides)
    launch(kernels.scaled_weight_sums, (tiles,), arguments, meta | config.compiler_options())


def _noted(
    op: str, given: tuple[Tensor, ...], optional: tuple[Tensor | None, ...], out: Tensor, config: GroupedConfig
) -> None:
    """A product, launched as before where a call comes again."""
    sizes = optional[0] if optional else None
    every = given if sizes is None else (*given, sizes)
    key = (op, id(config), given[0].shape, sizes is None, out.dtype, out.stride())  # it may be the caller's
    if repeated(key, every, (out,)):
        return
    with kept(key, every, (out,), config):
        x, w, groups, *scales = given
        x_scale, w_scale = scales or (None, None)
        _product(x, w, groups, sizes, x_scale, w_scale, out, config)


def _product(
    x: Tensor, w: Tensor, groups: Tensor, sizes: Tensor | None, x_scale: Tensor | None, w_scale: Tensor | None,
    out: Tensor, c: GroupedConfig,
) -> None:  # fmt: skip
    """Launch a product of every group; x is ``(m, k)``, or ``(groups, max_m, k)`` where ``groups`` holds counts."""
    groups, sizes = dense(groups, sizes)
    count, n, k = w.shape
    masked = x.dim() == 3
    scales: tuple[int, ...] = (0,) * 6
    scaled, weight_rows = "", 1
    if x_scale is not None and w_scale is not None:
        scaled = "blocks" if w_scale.shape[2] > 1 else "once"
        weight_rows = 1 if w_scale.shape[1] in (1, n) else 128
        of_x = (x_scale.stride(0) if masked else 0, step(x_scale, -2), x_scale.stride(-1))
        scales = (*of_x, w_scale.stride(0), step(w_scale, 1), w_scale.stride(2))
    rows = x.shape[-2]
    along_n = w.stride(1) == 1 and w.stride(2) > 1
    if along_n:
        described = c.tma and c.along and k % c.block_k == 0 and have_descriptors(x, w.mT)
        if c.along and not described:
            c = c.for_pointers()
    else:
        described = c.tma and have_descriptors(x, w)
    if not described and k % c.block_k:
        c = c.for_uneven()
    even = k % c.block_k == 0
    # In float32 a mask of columns beside one of rows takes more registers than wide loads save.
    along_n = along_n and (described or even or w.element_size() < 4)
    meta = {
        "MASKED": masked,
        "PADDED": sizes is not None,
        "FORMAT": name_of(x.dtype) if x.element_size() == 1 else "",
        "SCALED": scaled,
        "WEIGHT_ROWS": weight_rows,
        "DESCRIPTORS": described,
        "ALONG_N": along_n,
        "EVEN_K": even,
        "GROUPS": _room(count),
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "GROUP": c.group,
    }
    most = -(-n // c.block_n) * (count * -(-rows // c.block_m) if masked else -(-rows // c.block_m) + count - 1)
    a: Any = x
    b: Any = w
    if described:
        a = TensorDescriptor(x, [x.numel() // k, k], [x.stride(-2), 1], [c.block_m, c.block_k])
        if along_n:
            b = TensorDescriptor(w, [count * k, n], [w.stride(2), 1], [c.block_k, c.block_n])
        else:
            b = TensorDescriptor(w, [count * n, k], [w.stride(1), 1], [c.block_n, c.block_k])
    elif x.element_size() == 1:
        a, b = as_bytes(x), as_bytes(w)
    group_step = (rows if described else x.stride(0)) if masked else 0
    arguments = (
        a, b, out, x_scale, w_scale, groups, sizes, count, n, k, rows,
        group_step, x.stride(-2), x.stride(-1), w.stride(0), w.stride(1), w.stride(2),
        out.stride(0) if masked else 0, out.stride(-2), out.stride(-1), *scales,
    )  # fmt: skip
    grid = (max(1, min(most, c.per_unit * units(out))),)
    launch(kernels.products, grid, arguments, meta | c.compiler_options())


def have_descriptors(x: Tensor, w: Tensor) -> bool:
    """Whether both operands, as matrices of all rows, have descriptors."""
    return all(
        t.stride(-1) == 1
        and t.stride(-2) * t.element_size() % ALIGNMENT == 0
        and t.stride(-2) >= t.shape[-1]
        and t.data_ptr() % ALIGNMENT == 0
        and (t.dim() == 2 or t.stride(0) == t.shape[1] * t.stride(1))
        and (t.element_size() > 1 or t.dtype == torch.int8 or is_native(t))
        for t in (x, w)
    )


def dense(groups: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Index data without gaps: a few numbers, copied where they have some."""
    return groups.contiguous(), None if sizes is None else sizes.contiguous()


def _room(groups: int) -> int:
    """The power of two that groups are read by."""
    return max(16, 1 << (groups - 1).bit_length()) if groups else 16


def step(scale: Tensor, dim: int) -> int:
    """The stride of a dim; 0 where one entry holds for all."""
    return scale.stride(dim) if scale.shape[dim] > 1 else 0


def _weight_sums(
    out: Tensor, dy: Tensor, x: Tensor, offsets: Tensor, sizes: Tensor | None, accumulate: bool, c: GroupedConfig
) -> None:
    groups, n, k = out.shape
    offsets, sizes = dense(offsets, sizes)
    by_descriptors = c.tma and have_descriptors(dy, x)
    if c.tma and not by_descriptors:
        c = c.for_pointers()
    meta: dict[str, Any] = {
        "PADDED": sizes is not None,
        "ACCUMULATE": accumulate,
        "EARLY": accumulate and c.early,
        "BLOCK_M": c.block_m,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "GROUP": c.group,
    }
    tiles = groups * -(-n // c.block_m) * -(-k // c.block_n)
    described: list[Any] = [None, None]
    if by_descriptors:
        described = [
            TensorDescriptor(t, list(t.shape), [t.stride(0), 1], [c.block_k, width])
            for t, width in ((dy, c.block_m), (x, c.block_n))
        ]
    arguments = (dy, x, *described, out, offsets, sizes, n, k, *dy.stride(), *x.stride(), *out.stride())
    launch(kernels.weight_sums, (tiles,), arguments, meta | c.compiler_options())


def _zero_unused(out: Tensor, offsets: Tensor, sizes: Tensor | None) -> None:
    m, width = out.shape
    offsets, sizes = dense(offsets, sizes)
    groups = offsets.shape[0] - 1
    meta = {
        "PADDED": sizes is not None,
        "GROUPS": _room(groups),
        "ROWS": 16,
        "BLOCK": 256,
        "num_warps": 4,
    }
    launch(kernels.zero_unused, (-(-m // 16),), (out, offsets, sizes, groups, m, width), meta)
