"""What the records of attention take, why they refuse the rest, and the instance that a call launches."""

import pytest
import torch

import opmux
from opmux_ck.attention.choice import FEW_QUERIES, MANY_QUERIES
from opmux_ck.attention.targets import Scoring, addressable, attention_instance, empty_like_heads, limits
from opmux_ck.launching import MOST_BYTES


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def explained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *sinks: torch.Tensor, **options) -> str:
    explanation = opmux.explain(opmux.attention, q, k, v, *sinks, arch="gfx942", **options)
    (candidate,) = (c for c in explanation.candidates if c.name == "ck")
    return candidate.reason


CAUSAL = Scoring(None, 0.0, (-1, 0))
Q, KV = meta(2, 512, 8, 128), meta(2, 512, 2, 128)


def test_explain_shows_the_instance() -> None:
    assert explained(Q, KV, KV, causal=True) == (
        "priority 9; queries 128, keys 128, dim_step 32, key_step 32, waves 4, mfma 32 "
        "(heuristic: no tuned record for gfx942); "
        "launches attention_bf16_d128x128_b128x128_k32x32_w4_x32x32x16_mask"
    )


@pytest.mark.parametrize(
    ("tensors", "options", "reason"),
    [
        ((Q.float(), KV.float(), KV.float()), {}, "q is float32, takes bfloat16, float16"),
        ((Q[..., :96], KV[..., :96], KV[..., :96]), {},
         "head_dim = 96 with value_dim = 96 has no instance: takes 32 with 32, 64 with 64, 128 with 128, 192 with 128, "
         "256 with 256"),
        ((Q, KV, KV, meta(8)), {}, "sinks is not supported"),
        ((Q, KV, KV), {"scale": -1.0}, "scale = -1.0 is not positive"),
        ((meta(1, 1 << 20, 8, 128), KV[:1], KV[:1]), {}, "seq_q = 1048576 is more than 524288"),
        ((Q.transpose(1, 3).contiguous().transpose(1, 3), KV, KV), {},
         "the last stride of q is not 1: strides [524288, 1, 512, 4096]"),
        ((Q, meta(2, 512, 2, 132)[..., :128], KV), {}, "k is not aligned to 16 bytes"),
    ],
)  # fmt: skip
def test_refusals(tensors, options, reason) -> None:
    assert explained(*tensors, **options) == reason


def test_a_translation_unit_is_one_line_of_a_template() -> None:
    made = attention_instance(torch.float16, 192, 128, CAUSAL, MANY_QUERIES[192], ragged=True, lse=True)
    assert made.text() == (
        "// attention_fp16_d192x128_b128x128_k32x32_w4_x32x32x16_ragged_mask_lse\n"
        '#include "attention.h"\n\n'
        "OPMUX_CK_ATTENTION(ck_tile::fp16_t, 128, 128, 32, 128, 32, 192, 4, 32, 16, true, true, false, true)\n"
    )
    assert (made.op, made.kernel, made.threads) == ("attention", "attention", 256)


def test_the_names_tell_the_instances_apart() -> None:
    made = {
        attention_instance(dtype, dim, dim, Scoring(None, cap, seen), config, ragged=ragged, lse=lse)
        for dtype in (torch.bfloat16, torch.float16)
        for dim in (64, 128)
        for seen in ((-1, -1), (-1, 0), (5, 0))
        for cap in (0.0, 30.0)
        for config in (*FEW_QUERIES.values(), *MANY_QUERIES.values())
        for ragged in (False, True)
        for lse in (False, True)
    }
    assert len({one.name for one in made}) == len({one.text().partition("\n")[2] for one in made}) == len(made)


@pytest.mark.parametrize(
    ("causal", "window", "seen"),
    [(False, (-1, -1), (-1, -1)), (True, (-1, -1), (-1, 0)), (True, (7, 3), (7, 0)), (False, (7, 3), (7, 3))],
)
def test_what_a_query_sees(causal, window, seen) -> None:
    assert limits(causal, window) == seen


def test_a_head_that_a_launch_cannot_address_is_copied() -> None:
    far = torch.empty_strided((1, 1 << 20, 2, 128), (1 << 31, 2048, 128, 1), dtype=torch.bfloat16, device="meta")
    near = addressable(far, 1 << 20)
    assert near.stride() == (1 << 28, 128, 1 << 27, 1)
    assert addressable(near, 1 << 20) is near
    assert addressable(Q, 512) is Q


def test_an_output_that_a_launch_cannot_address_is_made_heads_first() -> None:
    out = empty_like_heads(meta(1, 1 << 19, 32, 128), 128, 1 << 19)
    assert (out.shape, out.stride(-3)) == ((1, 1 << 19, 32, 128), 128)
    assert (1 << 19) * out.stride(-3) * 2 <= MOST_BYTES
    assert empty_like_heads(Q, 128, 512).is_contiguous()
