"""Scales as their exponents, four to an int32, which DeepGEMM's kernels for other GPUs read and nothing here does.

They are here so that code which prepares scales for both kinds of GPUs runs; torch computes them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall
from opmux_deepgemm.compat.arguments import check_layout, check_number, check_scales, check_tensor, dtype, sizes_of
from opmux_deepgemm.compat.layouts import get_mn_major_tma_aligned_tensor

FRACTION = 23
"""Bits of a float32 below its exponent."""
PACKED = 4
"""Exponents in an int32, the first in its lowest byte."""


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Tensor, psum_layout: Tensor | None = None) -> Tensor:
    """Exponents of scales, of four blocks together, rows next to each other.

    Args:
        sf: float32 ``(*groups, rows, blocks)``, powers of two.
        psum_layout: taken for DeepGEMM's sake, which does not read rows of no group.

    Returns:
        int32 ``(*groups, rows, ceil(blocks / 4))``, each column padded to 16 bytes.

    Raises:
        UnsupportedCall: If the scales are not float32.
        InvalidArgument: If they have no rows and blocks.
    """
    name = "get_mn_major_tma_aligned_packed_ue8m0_tensor"
    check_scales(name, sf)
    exponents = _exponents(name, sf)
    padded = torch.nn.functional.pad(exponents, (0, -sf.shape[-1] % PACKED))
    return get_mn_major_tma_aligned_tensor(padded.contiguous().view(torch.int32))


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor, grouped_layout: Tensor, ks_cpu: Sequence[int] | None, gran_k: int, k_alignment: int,
    use_psum_layout: bool = False,
) -> Tensor:  # fmt: skip
    """The same of groups whose rows are summed: of four blocks of rows of a group together.

    Args:
        sf: float32 ``(sum of ceil(ks_cpu / gran_k), columns)``, powers of two.
        grouped_layout: how many rows each group has, int32 on the device.
        ks_cpu: the same on the host.
        gran_k: rows of a block.
        k_alignment: taken for DeepGEMM's sake.
        use_psum_layout: False; groups by where they end are for other GPUs.

    Returns:
        int32 ``(sum of ceil(ks_cpu / gran_k / 4), columns)``; a group's last exponents may be 0.

    Raises:
        UnsupportedCall: If the scales are not float32, or the groups are not given by their rows.
        InvalidArgument: If there are not as many scales as the groups have blocks.
    """
    name = "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor"
    sizes = sizes_of(name, ks_cpu, use_psum_layout)
    check_tensor(name, "sf", sf, 2)
    check_number(name, "gran_k", gran_k, 1)
    check_layout(name, grouped_layout, len(sizes), "the numbers of `ks_cpu`", "give both of one length")
    counts = [-(-size // gran_k) for size in sizes]
    exponents = _exponents(name, sf)
    if sum(counts) != len(sf):
        raise InvalidArgument(
            f"{name}: `ks_cpu` expected {len(sizes)} numbers whose blocks are {len(sf)}, got {len(counts)} "
            f"with {sum(counts)} blocks; give each group's rows"
        )
    rows, first = list[int](), 0
    for count in counts:
        rows += [*range(first, first + count), *[len(sf)] * (-count % PACKED)]  # behind the last row are zeros
        first += count
    padded = torch.nn.functional.pad(exponents, (0, 0, 0, 1))[torch.tensor(rows, dtype=torch.long, device=sf.device)]
    together = padded.view(-1, PACKED, sf.shape[1]).transpose(1, 2).contiguous()
    return together.view(torch.int32).squeeze(-1)


def _exponents(name: str, sf: Tensor) -> Tensor:
    if sf.dtype != torch.float32:
        raise UnsupportedCall(f"{name}: `sf` expected float32, got {dtype(sf)}; convert it")
    return (sf.contiguous().view(torch.int32) >> FRACTION).to(torch.uint8)
