"""Run by `attention/backward/test_shares` under TRITON_INTERPRET=1: gradients whose tiles of keys are divided."""

import math
import sys
from dataclasses import replace
from typing import Any

import torch
from interpreted_results import same

import opmux
from opmux.plugin import parse_arch
from opmux_triton.attention.backward import targets
from opmux_triton.attention.backward.configs import float32_config

torch.manual_seed(0)
CONFIG = float32_config(parse_arch("sm_90"), {"head_dim": 16, "value_dim": 16})
OPTIONS: dict[str, Any] = {"scale": None, "causal": False, "window": (-1, -1), "softcap": 0.0}


def check_dense(shares: int, mask: tuple[bool, ...] = (True,) * 4, poison: bool = False, **changes: Any) -> None:
    """Three query heads to a kv head, so that shares cut through heads; with ``poison``, a masked-out NaN."""
    options = {**OPTIONS, **changes}
    q, k, v = torch.randn(1, 70, 3, 16), torch.randn(1, 75, 1, 16), torch.randn(1, 75, 1, 8)
    sinks = torch.randn(3)
    out, lse = opmux.attention_lse.reference(q, k, v, sinks, **options)
    grad = torch.randn_like(out)
    if poison:
        grad[0, 3] = math.nan
    given = (grad, q, k, v, out, lse, sinks, None)
    found = targets.attention_backward(*given, **options, output_mask=mask, config=replace(CONFIG, shares=shares))
    expected = opmux.attention_backward.reference(*given, **options, output_mask=mask)
    same(found[1:3], expected[1:3], f"{shares} shares, {options}, {mask}, poison {poison}")


def check_ragged(shares: int) -> None:
    """An empty sequence, and tokens past the last one, whose gradients are zero."""
    offsets = torch.tensor([0, 33, 33, 60], dtype=torch.int32)
    q, k, v = torch.randn(64, 2, 16), torch.randn(64, 1, 16), torch.randn(64, 1, 16)
    options = {**OPTIONS, "causal": True, "max_seqlen_q": 33, "max_seqlen_k": 33}
    out, lse = opmux.attention_varlen_lse.reference(q, k, v, offsets, offsets, None, **options)
    given = (torch.randn_like(out), q, k, v, out, lse, offsets, offsets, None, None)
    mask = (False, True, True, False)
    found = targets.attention_varlen_backward(
        *given, **options, output_mask=mask, config=replace(CONFIG, shares=shares)
    )
    expected = opmux.attention_varlen_backward.reference(*given, **options, output_mask=mask)
    same(found[1:3], expected[1:3], f"ragged, {shares} shares")


for number in (1, 2, 8):
    check_dense(number)
    check_dense(number, causal=True, poison=True)
    check_ragged(number)
check_dense(3, window=(20, 9))
check_dense(4, (False, True, False, False))
check_dense(4, (False, False, True, False), softcap=15.0)
sys.stdout.write("all equal\n")
