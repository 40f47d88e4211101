"""What the core calls to merge partial attention results, forward and backward."""

from typing import Any

import torch
from torch import Tensor

from opmux_triton.arithmetic import padded
from opmux_triton.attention.merge import kernels
from opmux_triton.attention.merge.configs import MergeConfig
from opmux_triton.launch import launch
from opmux_triton.rows import folded


def merge_attention_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, config: MergeConfig
) -> tuple[Tensor, Tensor]:
    """The op `merge_attention_states`."""
    out = torch.empty(out_a.shape, dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty(lse_a.shape, dtype=torch.float32, device=out_a.device)
    if lse.numel():
        _launch(kernels.merge, (out_a, lse_a, out_b, lse_b), (out, lse), {}, config)
    return out, lse


def merge_attention_states_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    output_mask: tuple[bool, ...],
    config: MergeConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The op `merge_attention_states_backward`."""
    grad_out_a, grad_lse_a, grad_out_b, grad_lse_b = (
        torch.empty(x.shape if wanted else (0,), dtype=x.dtype, device=x.device)
        for x, wanted in zip((out_a, lse_a, out_b, lse_b), output_mask, strict=True)
    )
    grads = (grad_out_a, grad_lse_a, grad_out_b, grad_lse_b)
    if any(output_mask) and lse_a.numel():
        names = ("WANTS_OUT_A", "WANTS_LSE_A", "WANTS_OUT_B", "WANTS_LSE_B")
        wants = dict(zip(names, output_mask, strict=True))
        _launch(kernels.merge_backward, (grad_out, grad_lse, out_a, lse_a, out_b, lse_b), grads, wants, config)
    return grads


def _launch(
    kernel: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], flags: dict[str, Any], config: MergeConfig
) -> None:
    """Launch over the batch; inputs come in pairs (out, lse)."""
    *batch, queries, heads, dim = inputs[0].shape
    entries = [x[..., 0, 0, :] if place % 2 == 0 else x[..., 0, :] for place, x in enumerate(inputs)]
    dims = folded(entries)
    if len(dims) > 2:  # more than two dims after folding: loop over the first
        for entry in range(batch[0]):
            parts = tuple(x[entry] if x.numel() else x for x in outputs)
            _launch(kernel, tuple(x[entry] for x in inputs), parts, flags, config)
        return
    count = 1
    for size, _ in dims:
        count *= size
    nothing = (0,) * len(inputs)
    outer, inner = ([(1, nothing)] * 2 + dims)[-2:]
    strides: list[int] = []
    for place, x in enumerate(inputs):
        # An out is (seq, heads, dim) of each entry, an lse (heads, seq).
        of_head, of_query = x.stride()[-2:] if place % 2 else (x.stride(-2), x.stride(-3))
        strides += (outer[1][place], inner[1][place], of_head, of_query)
    rows = config.rows
    meta = {"DIM": dim, "BLOCK": padded(dim), "ROWS": rows, **flags, "num_warps": config.num_warps}
    grid = (-(-queries // rows) * heads * count,)
    launch(kernel, grid, (*inputs, *outputs, queries, heads, inner[0], *strides), meta)
