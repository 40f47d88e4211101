"""What the implementations of attention require of their heads."""

import pytest
import torch

import opmux


def reason(name: str, arch: str, **sizes: int) -> str | None:
    """Why an implementation of `attention` is not taken; None where it is a candidate."""
    given = {"seq": 256, "head_dim": 64, "value_dim": 64, **sizes}
    q, k = (torch.empty(1, given["seq"], 2, given["head_dim"], dtype=torch.bfloat16, device="meta") for _ in range(2))
    v = torch.empty(1, given["seq"], 2, given["value_dim"], dtype=torch.bfloat16, device="meta")
    plan = opmux.explain(opmux.attention, q, k, v, arch=arch)
    (found,) = [c for c in plan.candidates if c.name == name]
    return found.reason if found.status == "rejected" else None


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_heads_wider_than_the_tiles_are_refused(arch: str) -> None:
    assert reason("triton", arch, head_dim=256, value_dim=256) is None
    assert "head_dim = 257" in str(reason("triton", arch, head_dim=257))
    assert "value_dim = 300" in str(reason("triton", arch, value_dim=300))


def test_the_gluon_kernel_takes_equal_heads_of_64_and_128() -> None:
    assert reason("triton:hopper", "sm_90", head_dim=128, value_dim=128) is None
    assert "head_dim = 96" in str(reason("triton:hopper", "sm_90", head_dim=96, value_dim=96))
    assert "value_dim" in str(reason("triton:hopper", "sm_90", value_dim=128))
    assert "seq_q = 100" in str(reason("triton:hopper", "sm_90", seq=100))
