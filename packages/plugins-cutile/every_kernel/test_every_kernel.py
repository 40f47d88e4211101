"""Every kernel that calls of models get, compiled for four archs: arguments, local memory, registers, instructions."""

import pytest
from cubins import Cubin, compiled, layout

from opmux_cutile.launching import TileKernel
from opmux_cutile.shipping.kernels import ARCHS, kernels

SHARES = 8
"""Parts of an arch's kernels, each a test, so that several processes share them."""
COPIED = ("linear", "scaled_linear", "ragged", "masked", "dense")
MULTIPLIED = (*COPIED, "attend")
"""Names of kernels whose operands the copy engine reads, and of those that multiply matrices."""
PRODUCTS = ("HGMMA", "QGMMA", "UTCHMMA", "UTCQMMA", "HMMA", "QMMA")


def check(kernel: TileKernel, found: Cubin) -> None:
    """Hold a cubin to what its kernel needs."""
    assert found.parameters == layout(kernel.letters), kernel
    assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0), kernel
    assert 0 < found.registers <= 255, kernel
    if kernel.name in MULTIPLIED:
        assert any(found.count(instruction) for instruction in PRODUCTS), kernel
    if kernel.name in COPIED:
        assert found.count("UTMALDG"), kernel


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("arch", ["sm_80", *ARCHS])
def test_kernels(arch: str, share: int, tmp_path) -> None:
    wanted = list(kernels(arch).values())[share::SHARES]
    assert wanted
    for kernel in wanted:
        check(kernel, compiled(kernel, arch, tmp_path))
