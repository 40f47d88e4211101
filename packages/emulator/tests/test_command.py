"""``opmux emulate``."""

import json
from pathlib import Path

import pytest
import triton_kernels
from compiling import compile_kernel
from typer.testing import CliRunner

from opmux.cli.app import build_app
from opmux_emulator.emulate import schedule_text
from opmux_emulator.schedule.model import Loop, Schedule


@pytest.fixture
def file(tmp_path: Path) -> Path:
    compiled = compile_kernel(
        triton_kernels.add, "gfx942", {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 1024}
    )
    (tmp_path / "add.hsaco").write_bytes(compiled.asm["hsaco"])
    return tmp_path / "add.hsaco"


def emulate(*words: object):
    return CliRunner().invoke(build_app(), ["emulate", *map(str, words)], prog_name="opmux")


ARRAYS = ["--arg", "in:f32[1008]", "--arg", "in:f32[1008]", "--arg", "out:f32[1008]"]


def test_a_clean_run(file: Path) -> None:
    done = emulate(file, "--block", 256, *ARRAYS, "--arg", "i32=1008")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("add on gfx942: ")
    assert "\nmodel of a SIMD with " in done.output
    assert done.output.endswith("0 judgements\n")


def test_a_broken_rule(file: Path) -> None:
    done = emulate(file, "--block", 256, *ARRAYS, "--arg", "i32=1024", "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)["judgements"]
    assert {j["rule"] for j in found} == {"out-of-bounds"}
    assert "argument" in found[0]["detail"] or "x" in found[0]["detail"]


@pytest.mark.parametrize(("words", "message"), [
    (["--arch", "gfx950"], "expected code for gfx950, got code for gfx942"),
    (["--kernel", "mul"], "it has no kernel 'mul'; it has add"),
    (["--grid", "two"], "`--grid`: expected numbers with commas between, got 'two'"),
    (["--arg", "f33=1"], "`--arg f33=1`: expected i32=5, f32=0.5, null, in:f32[64,128], out:f32[64]"),
])  # fmt: skip
def test_bad_words(file: Path, words: list[str], message: str) -> None:
    done = emulate(file, *words)
    assert done.exit_code == 2
    assert message in done.output


def test_a_missing_file(tmp_path: Path) -> None:
    done = emulate(tmp_path / "none.hsaco")
    assert done.exit_code == 2
    assert "none.hsaco" in done.output


def test_the_model_of_a_loop_is_printed_and_called_a_model() -> None:
    loop = Loop(0x100, 0x180, 15, {"mfma": 16, "salu": 2}, 640.0, 0.8)
    lines = schedule_text(Schedule(2, 12_800, 0.75, loop, True))
    assert lines == [
        "model of a SIMD with 2 waves, of the first instructions only: 12800 cycles, matrix unit busy 75.0 % of them",
        "model of its hot loop, 0x100 to 0x180, 15 iterations: 640 cycles each (16 mfma, 2 salu), "
        "matrix unit busy 80.0 %",
    ]
    assert schedule_text(None) == []
