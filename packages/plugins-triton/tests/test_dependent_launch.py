"""Dependent launch: only where an arch has it, and waited for before anything is read or written."""

import re

import pytest
from planted_kernels import copy
from planted_launches import made

from opmux.plugin import parse_arch
from opmux_triton.aot.build import build
from opmux_triton.gemm import hopper_heuristics, hopper_targets
from opmux_triton.launch import FUSION, always, recording
from opmux_triton.norm import kernels, targets
from opmux_triton.norm.configs import RowsConfig


@pytest.mark.parametrize(
    ("arch", "dependent"), [("sm_80", False), ("sm_90", True), ("sm_100", True), ("gfx942", False)]
)
def test_kernels_that_wait_do_so_from_hopper_on(arch: str, dependent: bool) -> None:
    expected = {**FUSION, "DEPENDENT": dependent} | ({"launch_pdl": True} if dependent else {})
    assert always(kernels.norm, parse_arch(arch)) == expected
    assert always(copy, parse_arch(arch)) == FUSION


@pytest.mark.parametrize(("arch", "waits"), [("sm_90", 1), ("sm_80", 0)])
def test_the_wait_comes_before_every_access(arch: str, waits: int) -> None:
    with recording(arch) as recorded:
        config = RowsConfig(block=1024, rows=1, num_warps=4)
        targets.rms_norm(made(64, 1024), made(1024), eps=1e-6, weight_offset=0.0, config=config)
    text = build(recorded.launches[0], arch).text
    order = re.findall(r"griddepcontrol\.wait|ld\.global|st\.global", text)
    assert order.count("griddepcontrol.wait") == waits
    assert "ld.global" in order
    assert order[0] == ("griddepcontrol.wait" if waits else "ld.global")


def test_gluon_products_wait_once_and_let_the_next_start_after_that() -> None:
    config = hopper_heuristics.gluon(64, 8192, 4096)
    assert config is not None
    with recording("sm_90") as recorded:
        hopper_targets.linear(made(64, 4096), made(8192, 4096), None, config=config)
    launch = recorded.launches[0]
    assert launch.kernel.__name__ == "products"
    text = build(launch, "sm_90").text
    assert re.findall(r"griddepcontrol\.\w+", text) == ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]
