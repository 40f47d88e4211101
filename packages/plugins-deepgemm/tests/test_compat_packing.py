"""Scales as their exponents."""

import pytest
import torch

from opmux_deepgemm import compat


def powers(*shape: int) -> torch.Tensor:
    return torch.ldexp(torch.ones(shape), torch.randint(-40, 40, shape))


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Exponents, those of an int32 along the last dim, the lowest byte first."""
    return torch.stack([packed >> shift & 255 for shift in (0, 8, 16, 24)], -1)


def scales_of(exponents: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(exponents.shape), exponents - 127)


@pytest.mark.parametrize("shape", [(5, 7), (8, 4), (2, 5, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_exponents_of_blocks(shape, turned) -> None:
    *groups, rows, blocks = shape
    scales = powers(*groups, blocks, rows).mT if turned else powers(*shape)
    found = compat.get_mn_major_tma_aligned_packed_ue8m0_tensor(scales)
    columns, aligned = -(-blocks // 4), -(-rows // 4) * 4
    assert (found.dtype, found.shape) == (torch.int32, (*groups, rows, columns))
    assert found.stride()[-2:] == (1, aligned)
    exponents = unpacked(found).flatten(-2)
    assert torch.equal(scales_of(exponents[..., :blocks]), scales)
    assert not exponents[..., blocks:].any()


def test_exponents_of_groups_whose_rows_are_summed() -> None:
    ks = [128, 0, 640, 512]
    scales, layout = powers(10, 8), torch.tensor(ks, dtype=torch.int32)
    found = compat.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(scales, layout, ks, 128, 128)
    assert found.shape == (4, 8)  # 1, 0, 5 and 4 blocks
    assert found.is_contiguous()
    for part, rows in ((found[:1], scales[:1]), (found[1:3], scales[1:6]), (found[3:], scales[6:])):
        exponents = unpacked(part).mT.flatten(0, 1)
        assert torch.equal(scales_of(exponents[: len(rows)]), rows)
        assert not exponents[len(rows) :].any()


def test_what_is_refused() -> None:
    name = "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor"
    call, scales, layout = getattr(compat, name), powers(3, 8), torch.tensor([128, 256], dtype=torch.int32)
    with pytest.raises(
        ValueError, match=rf"^{name}: `ks_cpu` expected 2 numbers whose blocks are 3, got 2 with 4 blocks; give each"
    ):
        call(scales, layout, [256, 256], 128, 128)
    with pytest.raises(
        NotImplementedError, match=rf"^{name}: `use_psum_layout` expected False on Hopper GPUs, got True"
    ):
        call(scales, layout, [128, 256], 128, 128, use_psum_layout=True)
    with pytest.raises(
        NotImplementedError, match=rf"^{name}: `ks_cpu` expected how many rows each group has, got None;"
    ):
        call(scales, layout, None, 128, 128)
    with pytest.raises(
        NotImplementedError,
        match=r"^get_mn_major_tma_aligned_packed_ue8m0_tensor: `sf` expected float32, got float64; convert it$",
    ):
        compat.get_mn_major_tma_aligned_packed_ue8m0_tensor(scales.double())
