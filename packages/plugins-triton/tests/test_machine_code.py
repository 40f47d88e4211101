"""The check of machine code: what it reads, what it complains of, what counts as worse, and its command."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_kernels as planted
import pytest
import torch
from typer.testing import CliRunner

from opmux.errors import InvalidArgument
from opmux.testing import cases_of
from opmux_triton.aot import amdgcn, checks, expected, jobs, known, nvidia
from opmux_triton.aot import run as aot
from opmux_triton.aot.build import Built, build, dots_of
from opmux_triton.aot.facts import Facts
from opmux_triton.archs import PORTABLE
from opmux_triton.launch import FUSION, Launch, launch, recorded_arch, recording


def made(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*sizes, dtype=dtype, device="meta")


def launch_of(kernel: Any, *arguments: Any, **meta: Any) -> Launch:
    with recording("gfx942") as recorded:
        launch(kernel, (1,), arguments, meta)
    return recorded.launches[0]


def product(m: int, dtype: torch.dtype = torch.bfloat16, n: int = 64, **meta: Any) -> Launch:
    tensors = made(m, 64, dtype=dtype), made(n, 64, dtype=dtype), made(m, n, dtype=dtype)
    return launch_of(planted.product, *tensors, 64, M=m, N=n, K=32, **{"num_warps": 4, **meta})


COPY = (planted.copy, made(4096), made(4096), 4096)
STRIDED = (planted.copy_strided, made(4096), made(4096), 7, 4096)


def test_a_recording_notes_launches_and_makes_none() -> None:
    assert recorded_arch() is None
    with recording("gfx942") as recorded:
        assert recorded_arch() == "gfx942"
        launch(planted.copy, (2,), COPY[1:], {"BLOCK": 2048})
    assert [(x.kernel, x.grid, dict(x.meta)) for x in recorded.launches] == [
        (planted.copy, (2,), {"BLOCK": 2048, **FUSION})
    ]


@pytest.mark.parametrize(
    ("arch", "prefix"), [("gfx942", "v_mfma_f32_32x32x8"), ("gfx90a", "v_mfma_"), ("gfx950", "v_mfma_")]
)
def test_amd_code_is_read(arch: str, prefix: str) -> None:
    made_ = product(128, num_stages=2)
    built = build(made_, arch)
    facts = checks.read(built)
    assert any(name.startswith(prefix) for name in facts.matrix), facts.matrix
    assert 0 < facts.registers["vgpr"] <= 512
    assert facts.shared > 0
    assert facts.warps == 4
    assert facts.occupancy >= 1
    assert checks.complaints(built, facts, made_) == []


def test_the_matrix_instruction_is_the_one_asked_for() -> None:
    facts = checks.read(build(product(128, matrix_instr_nonkdim=16), "gfx942"))
    assert any("16x16x16" in name for name in facts.matrix)


def test_nvidia_code_is_read() -> None:
    built = build(product(128), "sm_90")
    facts = checks.read(built)
    assert any(name.startswith("HGMMA") for name in facts.matrix), facts.matrix
    assert "tall" in built.dots
    assert facts.spills == 0
    assert checks.complaints(built, facts, product(128)) == []
    assert any(n.startswith("HMMA") for n in checks.read(build(product(16), "sm_90")).matrix)


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


def facts_with(**changes: Any) -> Facts:
    good = Facts({"v_mfma_f32_32x32x8_bf16": 4}, {"vgpr": 100, "agpr": 16, "sgpr": 40}, 0, 0, 16384, 4, 4, 4, 4)
    return dataclasses.replace(good, **changes)


BUILT = Built("gfx942", "", b"", 0, 4, frozenset({"tall"}))


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
        "a 16-bit dot of 64 rows or more, but no warpgroup instruction"
    ]


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "waves"),
    [
        ("gfx942", 64, 0, 4, 8),
        ("gfx942", 128, 0, 4, 4),
        ("gfx942", 512, 0, 4, 1),
        ("gfx942", 64, 32768, 4, 2),
        ("gfx950", 64, 32768, 4, 5),
        ("gfx942", 64, 65536, 1, 1),
        ("gfx942", 64, 65537, 4, 0),
    ],
)
def test_occupancy_of_amd(arch: str, registers: int, shared: int, warps: int, waves: int) -> None:
    assert amdgcn.occupancy(arch, registers, shared, warps) == waves


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "resident"),
    [(32, 0, 4, 64), (128, 0, 4, 16), (255, 0, 8, 8), (64, 100 * 1024, 4, 8), (64, 228 * 1024, 4, 0)],
)
def test_occupancy_of_nvidia(registers: int, shared: int, warps: int, resident: int) -> None:
    assert nvidia.occupancy("sm_90", registers, shared, warps) == resident


def test_dots_are_read_from_the_ir() -> None:
    line = "%9 = tt.dot %7, %8, %arg, inputPrecision = {} : tensor<{}x32x{}> * tensor<32x64x{}> -> tensor<{}x64xf32>"
    assert dots_of(line.format("tf32", 128, "bf16", "bf16", 128)) == {"tall"}
    assert dots_of(line.format("tf32", 16, "f16", "f16", 16)) == {"short"}
    assert dots_of(line.format("tf32", 64, "f32", "f32", 64)) == {"f32"}
    assert dots_of(line.format("ieee", 64, "f32", "f32", 64)) == {"f32_ieee"}
    assert dots_of("%1 = arith.addf %2, %3 : f32") == frozenset()


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


def test_the_jobs_are_enumerated_by_what_picks_them() -> None:
    found = jobs.enumerate_jobs("gfx942", ["rms_norm"])
    assert found.failures == []
    assert found.cases >= len({c.id for c in cases_of("rms_norm", "model")}) // 3
    assert 0 < found.claimed <= found.cases
    assert len(found.jobs) == len({job.key for job in found.jobs.values()})
    hidden = {job.launch.arguments[0].shape[-1] for job in found.jobs.values()}
    assert {4096, 8192} <= hidden  # models' own sizes are what stands for a config
    assert "different (kernel, config, flags)" in jobs.describe(found)


def test_large_cases_add_jobs_and_take_none_away() -> None:
    names = ["rms_norm", "layer_norm"]
    usual, both = (jobs.enumerate_jobs("sm_90", names, profiles) for profiles in (("model",), jobs.PROFILES))
    picked, more = ({jobs._identity(j) for j in jobs.representatives(e.jobs.values())} for e in (usual, both))
    assert picked < more
    blocks = {j.config["block"] for j in jobs.representatives(both.jobs.values()) if j.profile == "large"}
    assert blocks == {2048, 4096}  # rows of 8192 that are read twice


def test_decoding_is_enumerated_with_room_for_far_more_tokens() -> None:
    found = jobs.enumerate_jobs("sm_90", ["paged_attention"])
    joined = {job.launch.meta["BLOCK_S"] for job in found.jobs.values() if job.kernel == "combine"}
    assert max(joined) == 64


def test_an_op_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument) as raised:
        jobs.enumerate_jobs("gfx942", ["rmsnorm"])
    assert str(raised.value) == "machine-code: `--op` expected the name of an op, got 'rmsnorm'; see `opmux ops`"


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "gfx1250"])
def test_an_arch_that_nobody_claims_is_refused(arch: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        aot.check_arch(arch)
    assert str(raised.value) == (
        f"machine-code: `ARCH` expected an arch that backend triton claims, got {arch!r}; "
        f"it claims {', '.join(PORTABLE)}"
    )


def test_a_kernel_that_does_not_compile_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = jobs.Job(
        "rms_norm", "triton", "not_compiling", {}, "", launch_of(planted.not_compiling, *COPY[1:], BLOCK=1024)
    )
    found = jobs.Enumeration("gfx942", {bad.key: bad})
    monkeypatch.setattr(aot, "enumerate_jobs", lambda arch, ops: found)
    result = aot.check_arch("gfx942", workers=1)
    (complaint,) = result.complaints
    assert complaint.startswith("not_compiling||: did not compile: CompileTimeAssertionFailure: ")
    assert "planted" in complaint


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``opmux machine-code`` on one small kernel, whose facts a test may change."""

    def invoke(*words: str, facts: Facts | None = None) -> Any:
        import typer

        from opmux_triton.aot.command import machine_code

        job = jobs.Job(
            "rms_norm", "triton", "copy", {"block": 1024}, "bfloat16", launch_of(*COPY, BLOCK=1024, num_warps=2)
        )
        found = jobs.Enumeration("gfx942", {job.key: job}, cases=1, claimed=1, launches=1)
        monkeypatch.setattr(aot, "enumerate_jobs", lambda arch, ops: found)
        if facts is not None:
            monkeypatch.setattr(checks, "read", lambda built: facts)
        application = typer.Typer()
        application.command()(machine_code)
        return CliRunner().invoke(application, list(words))

    return invoke


def test_the_command_prints_a_table_and_counts(command: Callable[..., Any]) -> None:
    done = command("gfx942")
    assert done.exit_code == 0
    assert "copy" in done.stdout
    assert "gfx942: 1 cases, 1 of them claimed, 1 launches, 1 different (kernel, config, flags)" in done.stdout


def test_without_the_extra_it_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from opmux.cli import main; sys.argv = ['opmux', 'machine-code', 'gfx942']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        'error: machine-code needs hypothesis, which is not installed: pip install "opmux[testing]"\n'
    )


def test_what_is_recorded_is_held_to(command: Callable[..., Any], tmp_path: Path) -> None:
    record = tmp_path / "gfx942.json"
    done = command("gfx942", "--expected", str(record))
    assert done.exit_code == 1
    assert "nothing is recorded under triton" in done.output
    assert command("gfx942", "--expected", str(record), "--write").exit_code == 0
    assert command("gfx942", "--expected", str(record)).exit_code == 0
    slower = facts_with(matrix={}, registers={"vgpr": 300, "agpr": 0, "sgpr": 30}, occupancy=1, shared=0)
    done = command("gfx942", "--expected", str(record), facts=slower)
    assert done.exit_code == 1
    assert "300 vgpr, was" in done.output
    assert "occupancy 1, was 8" in done.output


def test_rows_that_came_and_rows_that_went_are_said(command: Callable[..., Any], tmp_path: Path) -> None:
    import triton

    record = tmp_path / "gfx942.json"
    expected.write(record, triton.__version__, {"gone|block=1|bfloat16": facts_with()})
    done = command("gfx942", "--expected", str(record))
    assert done.exit_code == 1
    assert "copy|block=1024|bfloat16: not recorded yet: record it with --write" in done.output
    assert "gone|block=1|bfloat16: recorded, and not there any more" in done.output


def test_records_of_other_versions_stay(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    expected.write(record, "3.6.0", {"a": facts_with()})
    expected.write(record, "3.9.0", {"b": facts_with()})
    assert set(json.loads(record.read_text())) == {"3.6.0", "3.9.0"}
    assert expected.read(record, "3.6.0") == {"a": facts_with().as_dict()}
    assert expected.read(record, "9.9") is None


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    record.write_text("[]")
    with pytest.raises(InvalidArgument) as raised:
        expected.read(record, "3.9.0")
    assert str(raised.value).startswith(
        f"machine-code: `--expected` expected a JSON object of rows by Triton version, got {record}: "
    )
    assert str(raised.value).endswith("; write it again with --write")


def test_json_has_every_row(command: Callable[..., Any]) -> None:
    done = command("gfx942", "--json")
    data = json.loads(done.stdout)
    assert data["arch"] == "gfx942"
    assert [row["kernel"] for row in data["rows"]] == ["copy"]
    assert data["rows"][0]["facts"]["wide_loads"] > 0
    assert data["complaints"] == []


KNOWN = """
[[known]]
arch = "gfx942"
kernel = "attend"
flags = "LEFT=True"
complaints = ["spills"]
reason = "planted"

[[known]]
arch = "sm_90"
kernel = "attend"
flags = ""
complaints = ["spills"]
reason = "of another arch"

[[known]]
arch = "gfx942"
kernel = "attend"
flags = ""
complaints = ["spills"]
triton = "3.6."
reason = "of another version"
"""


def test_known_complaints_are_told_from_others(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    listed = known.read(file, "gfx942", "3.9.0")
    assert [(k.kernel, k.flags, k.complaints, k.reason) for k in listed] == [
        ("attend", ("LEFT=True",), ("spills",), "planted")
    ]
    mine = "attend|rows=16|LEFT=True bfloat16 absent:1: spills: 3"
    others = [
        "attend|rows=16|LEFT=False bfloat16 absent:1: spills: 3",
        "attend|rows=16|LEFT=True bfloat16: 64 bytes of private memory a thread",
        "combine|rows=16|LEFT=True bfloat16: spills: 3",
    ]
    assert known.sort_out([mine, *others], listed) == (others, [f"{mine} (known: planted)"], [])


def test_an_exception_may_be_of_one_version(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    assert [k.reason for k in known.read(file, "gfx942", "3.6.0")] == ["planted", "of another version"]


def test_an_exception_that_is_not_needed_any_more_is_a_complaint(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(KNOWN)
    assert known.sort_out([], known.read(file, "gfx942", "3.9.0")) == (
        [],
        [],
        ["attend LEFT=True: known, and not found any more: take it off the list"],
    )


def test_a_file_of_exceptions_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text("[[known]]\narch = 'gfx942'\n")
    with pytest.raises(InvalidArgument) as raised:
        known.read(file, "gfx942", "3.9.0")
    assert str(raised.value) == (
        "machine-code: `--known` expected a TOML file of tables [[known]] with arch, kernel, flags, complaints and "
        f"reason, got {file}: KeyError: 'kernel'; see packages/plugins-triton/machine-code/known.toml"
    )


def test_the_projects_own_exceptions_are_readable() -> None:
    file = Path(__file__).parent.parent / "machine-code" / "known.toml"
    assert all(known.read(file, arch, "3.9.0") for arch in ("gfx90a", "gfx942", "gfx950", "sm_90"))
