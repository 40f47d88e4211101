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


@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(64, 64), (72, 72), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)]
)
def test_the_gluon_kernel_takes_heads_from_64_to_256(head_dim: int, value_dim: int) -> None:
    assert reason("triton:hopper", "sm_90", head_dim=head_dim, value_dim=value_dim) is None


def test_the_gluon_kernel_refuses_other_heads_and_few_queries() -> None:
    for head_dim in (56, 100, 264):
        assert f"head_dim = {head_dim}" in str(reason("triton:hopper", "sm_90", head_dim=head_dim, value_dim=head_dim))
    for head_dim, value_dim in ((64, 128), (128, 192), (192, 64)):
        refusal = str(reason("triton:hopper", "sm_90", head_dim=head_dim, value_dim=value_dim))
        assert f"head_dim = {head_dim} is not equal to value_dim = {value_dim}" in refusal
    assert "seq_q = 100" in str(reason("triton:hopper", "sm_90", seq=100))
