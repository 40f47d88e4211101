"""What the core calls for paged attention on sm_90 where prompts are long: their tiles go to the Gluon kernel."""

import math
from typing import Any

import torch
from torch import Tensor

from opmux_triton.descriptors import has_descriptor
from opmux_triton.devices import units
from opmux_triton.hopper.descriptors import head_descriptor
from opmux_triton.launch import launch
from opmux_triton.paged import hopper_kernels as kernels
from opmux_triton.paged import targets
from opmux_triton.paged.call import Call
from opmux_triton.paged.configs import HopperConfig
from opmux_triton.scoring.options import LOG2_E

_ROWS = 128
"""Rows of a tile: 64 for each of two computing warpgroups."""


def paged_attention(*tensors: Tensor | None, config: HopperConfig, **options: Any) -> Tensor:
    """The op `paged_attention`."""
    return targets.run(tensors, options, config, False, _prefill)[0]


def paged_attention_lse(*tensors: Tensor | None, config: HopperConfig, **options: Any) -> tuple[Tensor, Tensor]:
    """The op `paged_attention_lse`."""
    out, lse = targets.run(tensors, options, config, True, _prefill)
    assert lse is not None
    return out, lse


def _prefill(call: Call, one: targets.Pass) -> bool:
    """Launch the Gluon kernel for a pass of prefill; returns False, without launching, where it cannot."""
    q = call.q[None]
    if not (0 < call.scale < math.inf and all(has_descriptor(x) for x in (q, call.k_cache, call.v_cache))):
        return False
    tokens, heads, head_dim = call.q.shape
    batch, page_size = call.lengths.shape[0], call.k_cache.shape[1]
    assert isinstance(call.config, HopperConfig)
    roles = call.config.hopper
    block = roles.block
    box = math.gcd(page_size, block)
    places = (tokens + batch * (_ROWS - 1)) // _ROWS
    programs = min(places * heads, units(call.q))
    bounded = call.left >= 0 or call.right >= 0
    troubles = torch.empty((programs,), dtype=torch.int32, device=q.device) if bounded else None
    launch(
        kernels.prefill,
        (programs,),
        (
            call.out, call.lse, call.sinks, call.offsets, call.lengths, call.table, troubles,
            head_descriptor(q, 64), head_descriptor(call.k_cache, box, 64), head_descriptor(call.v_cache, box, 64),
            call.offsets.stride(0), call.lengths.stride(0), *call.table.stride(), call.sinks_stride,
            heads, heads // call.k_cache.shape[2], tokens, batch, (batch - 1).bit_length(), places, one.fewest,
            call.scale * LOG2_E, call.left, call.right,
        ),
        {
            "HEAD_DIM": head_dim, "LEFT": call.left >= 0, "RIGHT": call.right >= 0, "PAGE": page_size, "BOX": box,
            "BLOCK": block, "STAGES": roles.stages, "SLOTS": roles.slots,
            "LOADERS": roles.loaders, "REGISTERS": roles.registers,
            "LOADING": roles.loading_registers, "num_warps": 4, "maxnreg": 168,
        },
    )  # fmt: skip
    if troubles is not None:
        targets.attend(call, one, troubles)
    return True
