"""What the check of machine code complains of, and what counts as worse."""

import dataclasses
from typing import Any

import pytest
from planted_launches import BUILT, COPY, STRIDED, facts_with, launch_of, product

from opmux_triton.aot import checks
from opmux_triton.aot.build import build


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_wide_loads_are_told_from_narrow_ones(arch: str) -> None:
    wide, narrow = launch_of(*COPY, BLOCK=1024, num_warps=2), launch_of(*STRIDED, BLOCK=1024, num_warps=2)
    wide_facts, narrow_facts = checks.read(build(wide, arch)), checks.read(build(narrow, arch))
    assert wide_facts.wide_loads == wide_facts.loads > 0
    assert narrow_facts.wide_loads == 0 < narrow_facts.loads
    assert checks.complaints(build(wide, arch), wide_facts, wide) == []
    assert checks.complaints(build(narrow, arch), narrow_facts, narrow) == [
        f"{narrow_facts.loads} global loads, none of 16 bytes"
    ]


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_spills_are_found(arch: str) -> None:
    spilling = product(256, n=256, num_warps=1 if arch == "gfx942" else 2)
    built = build(spilling, arch)
    found = checks.complaints(built, checks.read(built), spilling)
    assert any(text.startswith("spills: ") for text in found), found


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"spills": 3}, "spills: 3"),
        ({"scratch": 64}, "64 bytes of private memory a thread"),
        ({"matrix": {}}, "a dot, but no matrix instruction"),
        ({"registers": {"vgpr": 600, "agpr": 88, "sgpr": 40}}, "600 VGPRs and AGPRs, a wavefront has 512"),
        ({"registers": {"vgpr": 60, "agpr": 8, "sgpr": 140}}, "140 SGPRs, a wavefront has 108"),
        ({"shared": 70000}, "70000 bytes of LDS, a workgroup has 65536"),
        ({"occupancy": 0}, "no workgroup fits a compute unit"),
    ],
)
def test_each_limit_has_its_complaint(changes: dict[str, Any], complaint: str) -> None:
    assert checks.complaints(BUILT, facts_with(**changes), launch_of(*COPY, BLOCK=1024)) == [complaint]


def test_a_tall_dot_must_be_a_warpgroups_on_sm_90() -> None:
    built = dataclasses.replace(BUILT, arch="sm_90")
    facts = facts_with(matrix={"HMMA.16816.F32.BF16": 8}, registers={"reg": 128})
    assert checks.complaints(built, facts, launch_of(*COPY, BLOCK=1024)) == [
        "a dot of 64 rows or more in 16 or 8 bits, but no warpgroup instruction"
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, None),
        ({"registers": {"vgpr": 104, "agpr": 90, "sgpr": 40}}, None),
        ({"registers": {"vgpr": 130, "agpr": 16, "sgpr": 40}}, "130 vgpr, was 100"),
        ({"occupancy": 3}, "occupancy 3, was 4"),
        ({"matrix": {"v_mfma_f32_16x16x16_bf16": 8}}, "no v_mfma_f32_32x32x8_bf16 any more"),
        ({"wide_loads": 0}, "no 16-byte loads any more"),
        ({"shared": 20000}, "20000 bytes of shared memory, was 16384"),
    ],
)
def test_what_counts_as_worse(changes: dict[str, Any], text: str | None) -> None:
    assert checks.worse(facts_with().as_dict(), facts_with(**changes)) == ([] if text is None else [text])
