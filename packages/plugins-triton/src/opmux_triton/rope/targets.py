"""What the core calls for rotary embedding: q and k in one launch, with any strides."""

import torch
from torch import Tensor

from opmux_triton.arithmetic import next_power_of_two
from opmux_triton.launch import launch
from opmux_triton.repeats import kept, repeated
from opmux_triton.rope import kernels
from opmux_triton.rope.configs import RopeConfig
from opmux_triton.rows import folded

_DENSELY = torch.contiguous_format
_ONE_SEQUENCE = dict.fromkeys(
    ("cos_stride", "sin_stride", "positions_stride", "seq", "q_outer", "k_outer", "positions_outer")
)


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool, config: RopeConfig
) -> tuple[Tensor, Tensor]:
    """The op `apply_rope`."""
    q_out, k_out = torch.empty_like(q, memory_format=_DENSELY), torch.empty_like(k, memory_format=_DENSELY)
    _rope(q, k, q_out, k_out, cos, sin, positions, interleaved, False, False, config)
    return q_out, k_out


def apply_rope_(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool, config: RopeConfig
) -> None:
    """The op `apply_rope_`."""
    _rope(q, k, q, k, cos, sin, positions, interleaved, True, False, config)


def apply_rope_backward(
    grad_q_out: Tensor, grad_k_out: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *, interleaved: bool,
    output_mask: tuple[bool, ...], config: RopeConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `apply_rope_backward`."""
    pairs = []
    for grad, wanted in zip((grad_q_out, grad_k_out), output_mask, strict=True):
        made = torch.empty_like(grad, memory_format=_DENSELY) if wanted else grad.new_empty(0)
        pairs.append((grad if wanted else None, made))
    (q, grad_q), (k, grad_k) = pairs
    _rope(q, k, grad_q, grad_k, cos, sin, positions, interleaved, False, True, config)
    return grad_q, grad_k


def _rope(
    q: Tensor | None, k: Tensor | None, q_out: Tensor, k_out: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None, interleaved: bool, in_place: bool, backward: bool, config: RopeConfig,
) -> None:  # fmt: skip
    """Launch over the tensors that are given and not empty; k alone takes q's place, which a launch needs."""
    k_result: Tensor | None = k_out
    if k is not None and not k.numel():
        k = None
    if k is None:
        k_result = None
    if q is None or not q.numel():
        if k is None:
            return
        q, q_out, k, k_result = k, k_out, None, None
    given: tuple[Tensor, ...] = (q, cos, sin) if k is None else (q, cos, sin, k)
    if positions is not None:
        given = (*given, positions)
    results = () if in_place else (q_out,) if k_result is None else (q_out, k_result)
    key = ("rope", id(config), q.shape, k is None, positions is None, interleaved, in_place, backward)
    if not repeated(key, given, results):
        with kept(key, given, results, config):
            _launch(q, k, q_out, k_result, cos, sin, positions, interleaved, in_place, backward, config)


def _launch(
    q: Tensor, k: Tensor | None, q_out: Tensor, k_out: Tensor | None, cos: Tensor, sin: Tensor,
    positions: Tensor | None, interleaved: bool, in_place: bool, backward: bool, config: RopeConfig,
) -> None:  # fmt: skip
    *batch, seq, heads, head_dim = q.shape
    half = cos.shape[1]
    kv_heads, k_stride, k_head_stride = 0, 0, 0
    *_, q_stride, q_head_stride, _ = q.stride()
    if k is not None:
        kv_heads = k.shape[-2]
        *_, k_stride, k_head_stride, _ = k.stride()
    rest = 0 if in_place else head_dim - 2 * half
    meta = {
        "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "HALF": half,
        "HALF_BLOCK": next_power_of_two(half), "REST_BLOCK": next_power_of_two(rest) if rest > 0 else 0,
        "INTERLEAVED": interleaved, "IN_PLACE": in_place, "BACKWARD": backward,
        "BLOCK_HEADS": config.block_heads, "TOKENS": config.tokens, "num_warps": config.num_warps,
    }  # fmt: skip
    block_heads = config.block_heads
    blocks = -(-heads // block_heads) - (-kv_heads // block_heads)
    tensors = (q, k, q_out, k_out, cos, sin, positions)
    strides = (q_stride, q_head_stride, k_stride, k_head_stride)
    dense = cos.is_contiguous() and sin.is_contiguous() and (positions is None or positions.is_contiguous())
    if dense and not batch:
        grid = (-(-seq // config.tokens) * blocks,)
        launch(kernels.rope, grid, (*tensors, seq, *strides), {**_ONE_SEQUENCE, **meta})
        return
    outer = _outer_strides(q, k, positions)
    if outer is None:
        for entry in range(batch[0]):
            _launch(
                q[entry], None if k is None else k[entry], q_out[entry], None if k_out is None else k_out[entry],
                cos, sin, None if positions is None else positions[entry], interleaved, in_place, backward, config,
            )  # fmt: skip
        return
    tokens = q.numel() // (heads * head_dim)
    tables = (cos.stride(0), sin.stride(0), None if positions is None else positions.stride(-1))
    grid = (-(-tokens // config.tokens) * blocks,)
    launch(kernels.rope, grid, (*tensors, tokens, *strides, *tables, seq, *outer), meta)


def _outer_strides(q: Tensor, k: Tensor | None, positions: Tensor | None) -> tuple[int, int, int] | None:
    """The single stride of each tensor's batch dims, 0 without such dims; None if those of one tensor do not fold."""
    found = []
    for tensor, after in ((q, 3), (k, 3), (positions, 1)):
        dims = [] if tensor is None or tensor.dim() == after else folded((tensor,), after)
        if len(dims) > 1:
            return None
        found.append(dims[0][1][0] if dims else 0)
    return found[0], found[1], found[2]
