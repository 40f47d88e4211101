"""The program that measures the choice: its calls are valid, and a run of small ones on the CPU works and goes on."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MODULES = ("measure_choice", "compile_ahead", "choice_rows", "choice_peers", "choice_shapes")
MODULES += ("measure_attention", "measure_products")
QUICK = ["--seed", "3", "--small", "--per-group", "1", "--rounds", "3", "--group", "linear-decode"]
QUICK += ["--group", "linear_backward"]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure_choice

    yield measure_choice
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_dry_run_lists_valid_calls_of_every_group(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = program.choice_shapes
    assert program.main(["--seed", "7", "--per-group", "3", "--dry"]) == 0
    listed = capsys.readouterr().out.splitlines()
    groups = [group.key for group in shapes.groups(False) if not group.named_only]
    assert listed[-1] == f"{3 * len(groups)} calls"
    assert Counter(line.partition(":")[0] for line in listed[:-1]) == dict.fromkeys(groups, 3)
    for _, point in shapes.drawn(7, 3, False):
        point.check()


def test_a_group_draws_the_same_whichever_others_are_drawn(program: ModuleType) -> None:
    drawn = program.choice_shapes.drawn
    alone = [point.key for _, point in drawn(7, 5, False, ["norms"])]
    assert alone == [point.key for group, point in drawn(7, 5, False) if group == "norms"]
    assert alone != [point.key for _, point in drawn(8, 5, False, ["norms"])]


def test_small_calls_are_measured_on_the_cpu_and_a_run_goes_on(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "choice.json"
    assert program.main([*QUICK, "--out", str(out), "--limit", "1e-9"]) == 1, "no time for anything"
    assert json.loads(out.read_text())["rows"] == []
    assert program.main([*QUICK, "--out", str(out)]) == 0
    data = json.loads(out.read_text())
    assert (data["seed"], data["small"], data["arch"], data["rows_of"]) == (3, True, "cpu", {})
    assert [row["group"] for row in data["rows"]] == ["linear-decode", "linear_backward"]
    for row in data["rows"]:
        assert row["chosen"] in row["opmux"]
        assert row["why"].startswith("priority ")
        assert row["failed"] == {}
        assert row["opmux"][row["chosen"]][3] == 3, "rounds"
        assert row["torch"].keys() == {"torch eager"}
        assert row["whole"].keys() == {"opmux", "torch"}
    written = out.read_text()
    assert program.main([*QUICK, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["rows"] == json.loads(written)["rows"], "nothing was left to measure"
    capsys.readouterr()


def test_quantised_products_are_drawn_by_name_and_summed_up(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [group.key for group in program.choice_shapes.groups(False) if group.named_only]
    int8, groups = set(), set()
    for key, point in program.choice_shapes.drawn(7, 5, False, named):
        point.check()
        groups.add((key, point.op))
        if point.dtypes.get("w") == torch.int8:
            int8.add((key, point.dims["w_rows"] == point.dims["n"]))
    assert int8 == {("scaled_int8-token", True), ("scaled_int8-tensor", False)}
    drawn = [op for key, op in groups if key in ("quantize", "gates", "rope")]
    assert len(drawn) >= 6, "several ops of each of these groups"
    coded = [point for _, point in program.choice_shapes.drawn(7, 5, False, ["decode-fp8"])]
    assert {point.dtypes["k_cache"] for point in coded} == {torch.float8_e4m3fn}
    words = ["--seed", "3", "--small", "--per-group", "1", "--rounds", "3", "--out", str(tmp_path / "choice.json")]
    assert program.main([*words, *(word for key in named for word in ("--group", key))]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "; regret geomean " in line]
    assert [line.partition(":")[0] for line in lines] == named
    assert all(": 1 calls" in line for line in lines)
    with_torch = [line.partition(":")[0] for line in lines if "over the best of torch geomean" in line]
    assert {"scaled_linear-token", "grouped_linear", "scaled_int8-token", "scaled_int8-tensor"} <= set(with_torch)
    rows = json.loads((tmp_path / "choice.json").read_text())["rows"]
    assert [row["group"] for row in rows if "torch._int_mm" in row["torch"]] == [
        "scaled_int8-token",
        "scaled_int8-tensor",
    ]


def test_a_file_of_another_run_is_not_mixed_in(program: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "choice.json"
    program.main([*QUICK, "--out", str(out), "--limit", "1e-9"])
    with pytest.raises(SystemExit, match=r"choice\.json: `seed` is 3 there and 4 now; name another file"):
        program.main(["--seed", "4", *QUICK[2:], "--out", str(out)])


def test_without_a_gpu_it_says_what_to_do(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        program.main(["--seed", "1", "--out", str(tmp_path / "a.json")])
    assert "measuring needs a GPU and there is none; --small measures small calls on the CPU" in capsys.readouterr().err


def test_files_of_several_gpus_become_one(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, both = (tmp_path / f"{name}.json" for name in ("first", "second", "both"))
    words = ["--seed", "3", "--small", "--per-group", "1", "--rounds", "3"]
    program.main([*words, "--group", "linear-decode", "--out", str(first)])
    program.main([*words, "--group", "linear_backward", "--out", str(second)])
    assert program.main(["--join", str(first), str(second), str(first), "--out", str(both)]) == 0
    data = json.loads(both.read_text())
    assert [row["group"] for row in data["rows"]] == ["linear-decode", "linear_backward"]
    assert {k: v for k, v in data.items() if k != "rows"} == {
        k: v for k, v in json.loads(first.read_text()).items() if k != "rows"
    }
    assert capsys.readouterr().out.endswith("2 calls\n")
    second.write_text(second.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(SystemExit, match=r"second\.json: `seed` is 4 there and 3 now; name another file"):
        program.main(["--join", str(first), str(second), "--out", str(both)])
    with pytest.raises(SystemExit):
        program.main(["--out", str(both)])
    assert "--seed expected a number that the calls are drawn by, got none" in capsys.readouterr().err
