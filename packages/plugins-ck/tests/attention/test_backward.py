"""Gradients of attention: the rules of a tile, the tile that a call gets, refusals, and the instances."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_ck.attention.backward_choice import TILES, backward_config, backward_space
from opmux_ck.attention.backward_configs import HEADS, broken_rules, misfit
from opmux_ck.attention.backward_instances import AttentionBackward, OutputProduct
from opmux_ck.attention.backward_targets import (
    apart,
    attention_backward,
    attention_varlen_backward,
    backward_instances,
    zeros,
)
from opmux_ck.attention.targets import Scoring

GFX942 = parse_arch("gfx942")
TILE = TILES[128]
BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"keys": 0}, "queries, keys, key_step, waves_m and waves_n = 16, 0, 32, 1, 4: one is less than 1"),
        ({"waves_n": 2}, "waves_m * waves_n = 2 is not 4"),
        ({"queries": 24}, "queries = 24 is not a multiple of 16 * waves_m = 16"),
        ({"keys": 96}, "keys = 96 is not a multiple of 64, 16 of each wave"),
        ({"key_step": 8}, "key_step = 8 is not a multiple of 16"),
        ({"key_step": 48}, "keys = 128 is not a multiple of key_step = 48"),
    ],
)
def test_what_no_instance_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        replace(TILE, **fields)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("config", "head_dim", "reason"),
    [
        (TILE, 128, None),
        (TILE, 80, "head_dim = 80 is not a multiple of 32"),
        (TILE, 96, "head_dim = 96 is not a multiple of 16 * waves_n = 64"),
        (TILE, 256, "keys take 131072 bytes of LDS, in rows and in columns, more than 65536"),
    ],
)
def test_what_does_not_fit_heads(config, head_dim, reason) -> None:
    assert misfit(config, head_dim) == reason


@pytest.mark.parametrize("head_dim", HEADS)
def test_what_a_call_gets_fits(head_dim) -> None:
    features = {"head_dim": head_dim, "value_dim": head_dim}
    found = backward_config(GFX942, features)
    assert list(broken_rules(found)) == []
    assert found in list(backward_space(GFX942, features))
    assert all(misfit(one, head_dim) is None for one in backward_space(GFX942, features))


def explained(q: torch.Tensor, kv: torch.Tensor, *sinks: torch.Tensor, **options: Any) -> str:
    lse = meta(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)
    explanation = opmux.explain(opmux.attention_backward, q, q, kv, kv, q, lse, *sinks, arch="gfx942", **options)
    (candidate,) = (c for c in explanation.candidates if c.name == "ck")
    return candidate.reason


Q, KV = meta(2, 512, 8, 128), meta(2, 512, 2, 128)


def test_explain_shows_the_instance() -> None:
    assert explained(Q, KV, causal=True) == (
        "priority 9; queries 16, keys 128, key_step 32, waves_m 1, waves_n 4 (heuristic: no tuned record for gfx942); "
        "launches output_product_bf16_d128, attention_backward_bf16_d128_b16x128_k32_w1x4_mask_shared"
    )


@pytest.mark.parametrize(
    ("tensors", "options", "reason"),
    [
        ((Q.float(), KV.float()), {}, "q is float32, takes bfloat16, float16"),
        ((Q[..., :96], KV[..., :96]), {},
         "head_dim = 96 with value_dim = 96 has no instance: takes the same of 32, 64, 128, 256 for both"),
        ((Q, KV, meta(8)), {}, "sinks is not supported"),
        ((Q, KV), {"softcap": 30.0}, "softcap = 30.0 is more than 0"),
        ((Q, meta(2, 512, 2, 132)[..., :128]), {}, "k is not aligned to 16 bytes"),
    ],
)  # fmt: skip
def test_refusals(tensors, options, reason) -> None:
    assert explained(*tensors, **options) == reason


def test_a_translation_unit_is_one_line_of_a_template() -> None:
    product, made = backward_instances(BF16, 128, 4, Scoring(None, 0.0, (-1, 0)), TILE, ragged=True)
    assert made.text() == (
        "// attention_backward_bf16_d128_b16x128_k32_w1x4_ragged_mask_shared\n"
        '#include "attention_backward.h"\n\n'
        "OPMUX_CK_ATTENTION_BACKWARD(ck_tile::bf16_t, float, 16, 128, 32, 128, 1, 4, true, true)\n"
    )
    assert (made.op, made.kernel, made.threads) == ("attention_backward", "attention_backward", 256)
    assert product.text() == (
        '// output_product_bf16_d128\n#include "attention_backward.h"\n\n'
        "OPMUX_CK_OUTPUT_PRODUCT(ck_tile::bf16_t, 128)\n"
    )


def test_the_names_tell_the_instances_apart() -> None:
    flags = (False, True)
    instances = {
        AttentionBackward(x, dim, TILES[dim], ragged, masked, shared)
        for x in ("bf16", "fp16")
        for dim in TILES
        for ragged in flags
        for masked in flags
        for shared in flags
    } | {OutputProduct(x, dim) for x in ("bf16", "fp16") for dim in TILES}
    assert len({one.name for one in instances}) == len(instances)
    assert len({one.text().partition("\n")[2] for one in instances}) == len(instances)


OPTIONS = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "output_mask": (True, False, True, True)}


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_without_pairs_gradients_are_0_and_nothing_is_launched(queries, keys) -> None:
    q, k, lse = torch.ones(2, queries, 4, 64), torch.ones(2, keys, 2, 64), torch.ones(2, 4, queries)
    grads = attention_backward(q, q, k, k, q, lse, None, None, **OPTIONS, config=TILES[64])
    assert [tuple(grad.shape) for grad in grads] == [tuple(q.shape), (0,), tuple(k.shape), (0,)]
    assert not any(grad.any() for grad in grads)


def test_a_ragged_batch_without_sequences_launches_nothing() -> None:
    q, k, lse, starts = torch.ones(3, 4, 64), torch.ones(3, 2, 64), torch.ones(4, 3), torch.zeros(1, dtype=torch.int32)
    bounds = {"max_seqlen_q": 0, "max_seqlen_k": 0}
    tensors = q, q, k, k, q, lse, starts, starts, None, None
    grads = attention_varlen_backward(*tensors, **OPTIONS, **bounds, config=TILES[64])
    assert not any(grad.any() for grad in grads)


def test_gradients_that_a_launch_cannot_address_are_made_heads_first() -> None:
    far = zeros((1, 1 << 18, 32, 128), torch.float32, torch.device("meta"), 1 << 18)
    assert (tuple(far.shape), far.stride(-3)) == ((1, 1 << 18, 32, 128), 128)
    assert zeros((2, 512, 8, 128), torch.float32, torch.device("meta"), 512).is_contiguous()


def test_tokens_that_overlap_are_copied() -> None:
    assert apart(meta(1, 4, 64).expand(9, 4, 64)).stride() == (256, 64, 1)
    heads_first = meta(4, 9, 64).transpose(0, 1)
    assert apart(heads_first) is heads_first
