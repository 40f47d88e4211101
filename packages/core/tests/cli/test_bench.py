"""`opmux bench`."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from backends import backends, implementation

QUICK = ("--rounds", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of small buffers: what they measure is not looked at here."""
    monkeypatch.setattr("opmux.bench.work._COPY_BYTES", {"cpu": 2**16})
    monkeypatch.setattr("opmux.bench.work._MATMUL", {"cpu": 64})


def zeros(x, weight, *, eps, weight_offset):
    return torch.zeros_like(x)


def test_the_table_has_a_row_for_everybody(opmux_cli, rows_plugin) -> None:
    with backends(rows=rows_plugin):
        done = opmux_cli("bench", "rms_norm", *QUICK)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cpu (cpu), float32, small shapes, torch ")
    assert lines[1].startswith("ceilings of this run: copy ")
    first = next(index for index, line in enumerate(lines) if line.startswith("rms_norm, small prefill"))
    assert {line[2:15].strip() for line in lines[first + 1 : first + 4]} == {"reference", "rows", "torch eager"}
    assert lines[first + 4].startswith("rms_norm, small decode")


def test_json_says_who_was_chosen_and_how_far_from_the_best_peer(opmux_cli, rows_plugin) -> None:
    with backends(rows=rows_plugin):
        done = opmux_cli("bench", "rms_norm", "--backend", "rows", "--dtype", "f64", *QUICK, "--json")
    told = json.loads(done.stdout)
    assert (told["passed"], told["dtype"], told["size"]) == (True, "float64", "small")
    for case in told["cases"]:
        contenders = {c["name"]: c for c in case["contenders"]}
        assert set(contenders) == {"rows", "torch eager"}
        assert contenders["rows"]["chosen"]
        assert contenders["rows"]["ratio"] == pytest.approx(
            contenders["torch eager"]["median_us"] / contenders["rows"]["median_us"]
        )


def test_the_summary_and_a_picture_of_each_op_are_written(opmux_cli, tmp_path: Path) -> None:
    path = tmp_path / "bench.svg"
    assert opmux_cli("bench", "silu_mul", "rms_norm", *QUICK, "--plot", str(path)).exit_code == 0
    for name in ("bench.svg", "bench.silu_mul.svg", "bench.rms_norm.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_plot_without_the_extra_says_how_to_install_it(
    opmux_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("opmux.cli.bench.find_spec", lambda name: None)
    done = opmux_cli("bench", "silu_mul", *QUICK, "--plot", str(tmp_path / "bench.svg"))
    assert done.exit_code == 2
    assert done.stderr == 'error: bench: `--plot` needs matplotlib, which is not installed: pip install "opmux[plot]"\n'
    assert done.stdout == ""


def test_a_wrong_result_exits_with_1(opmux_cli) -> None:
    with backends(zero=implementation(zeros)):
        done = opmux_cli("bench", "rms_norm", *QUICK)
    assert done.exit_code == 1
    assert "error: rms_norm, small prefill: zero: its result differs from the reference's by 1 of " in done.stderr


def test_a_backend_that_takes_nothing_exits_with_1_and_says_why(opmux_cli) -> None:
    with backends(far=implementation("nowhere:rms_norm", archs=("sm_90",))):
        done = opmux_cli("bench", "rms_norm", "--backend", "far", *QUICK)
    assert done.exit_code == 1
    assert "rms_norm, small decode: far rejected: archs: sm_90, this is cpu" in done.stdout
    assert done.stderr == "error: no implementation was timed\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("rmsnorm",), "bench: `op` expected the name of an op, got 'rmsnorm'; did you mean rms_norm? "),
        (("rms_norm", "--backend", "dance"), "bench: `backend` expected one of "),
        (("--size", "huge"), "bench: `size` expected one of small, model, figures, got 'huge'; omit it"),
        (("--dtype", "i8"), "bench: `dtype` expected bf16, f16, f32 or f64, got int8; omit it"),
        (("--dtype", "b16"), "bench: `--dtype` expected a dtype (bf16, "),
        (("--limit", "-1"), "bench: `limit` expected 0 seconds or more, got -1; omit it for the default of 5"),
        (("--rounds", "0"), "bench: `rounds` expected 1 or more, got 0; omit it for the default of 20"),
        (("--device", "cuda:77"), "bench: `--device` expected one of cpu"),
        (("--plot", "no/such/folder/a.svg"), "opmux: `--plot` expected a file in a folder that exists, "),
    ],
)
def test_wrong_use_exits_with_2(opmux_cli, words: tuple[str, ...], complaint: str) -> None:
    done = opmux_cli("bench", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {complaint}")
