"""Files of measured rows: written, read back, and refused row by row."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from opmux.errors import TunedRecordError
from opmux.tuning.measured import FailedConfig, Machine, MeasuredRow, read_measured, write_measured
from opmux.tuning.measured.files import rounded

H200 = Machine("sm_90", "NVIDIA H200", 132, 1980.0, 4917.0, "570.1", {"torch": "2.11.0"}, {"sm": 1755}, "2026-11-23")
LINEAR = MeasuredRow(
    op="linear",
    dtypes={"x": torch.bfloat16, "w": torch.bfloat16},
    options={},
    dims={"tokens": 512, "k": 4096, "n": 4096},
    implementation="fast:wide",
    machine=H200,
    time_us=31.2,
    spread=0.012,
    error=0.34,
    compared=("fast:wide", "other"),
    config={"block_m": 128, "split": None, "swap": True},
)
PAGED = MeasuredRow(
    op="paged_attention",
    dtypes={
        **dict.fromkeys(("q", "k_cache", "v_cache"), torch.bfloat16),
        **dict.fromkeys(("cu_seqlens_q", "seq_lens", "block_table"), torch.int32),
    },
    options={"max_seqlen_q": 1, "max_seqlen_k": 4096, "causal": False},
    dims={
        "tokens": 8, "heads": 32, "head_dim": 128, "pages": 2048, "page_size": 16, "kv_heads": 8, "value_dim": 128,
        "batch": 8, "max_pages": 256,
    },
    implementation="other",
    machine=H200,
    time_us=52.0,
    spread=0.01,
    error=0.2,
    compared=("other",),
    flops=1.2e9,
    moved_bytes=1.34e8,
)  # fmt: skip


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., str]:
    """Write `LINEAR`, change one line of the file, and give the reason for which line and row are refused."""

    def change(line: int, edit: Callable[[Any], Any]) -> str:
        path = tmp_path / "changed.measured"
        good = replace(LINEAR, dims={**LINEAR.dims, "tokens": 1024}, time_us=60.0)
        write_measured(path, [LINEAR, good])
        lines = lines_of(path)
        made = edit(json.loads(lines[line - 1]))
        lines[line - 1] = made if isinstance(made, str) else json.dumps(made)
        path.write_text("\n".join(lines))
        found = read_measured(path)
        assert found.refused[0].line == line
        assert len(found.rows) == (1 if line == 5 else 0), "a refused row costs no other one"
        return found.refused[0].reason

    return change


def test_rows_read_back_as_they_were_written(tmp_path: Path) -> None:
    failed = FailedConfig(
        "linear", LINEAR.dtypes, {}, LINEAR.dims, "fast:wide", H200, {"block_m": 512, "split": 2, "swap": False},
        "faulted: an illegal memory access",
    )  # fmt: skip
    plain = replace(LINEAR, implementation="other", config=None, time_us=33.0)
    path = tmp_path / "deeper" / "h200.measured"
    write_measured(path, [PAGED, plain, LINEAR], [failed])
    found = read_measured(path)
    assert found.refused == ()
    assert sorted(found.rows, key=lambda r: r.time_us) == [LINEAR, plain, PAGED]
    assert found.failed == (failed,)
    assert found.rows[0].where == "h200.measured:6"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("out_dtype=bf16", {}), ("out_dtype=none", {}), ("out_dtype=f32", {"out_dtype": torch.float32})],
)
def test_the_dtype_that_a_result_has_anyway_is_no_option_of_a_row(tmp_path: Path, given: str, meant: dict) -> None:
    path = tmp_path / "h200.measured"
    write_measured(path, [replace(LINEAR, options={"out_dtype": torch.float32})])
    path.write_text(path.read_text().replace("out_dtype=f32", given))
    assert given in path.read_text()
    assert [row.options for row in read_measured(path).rows] == [meant]


def test_a_file_does_not_depend_on_the_order_of_its_rows(tmp_path: Path) -> None:
    rows = [LINEAR, PAGED, replace(LINEAR, dims={**LINEAR.dims, "tokens": 64}, time_us=20.0)]
    write_measured(tmp_path / "a.measured", rows)
    write_measured(tmp_path / "b.measured", rows[::-1])
    assert (tmp_path / "a.measured").read_bytes() == (tmp_path / "b.measured").read_bytes()


def test_rows_are_one_short_line_each(tmp_path: Path) -> None:
    rows = [replace(LINEAR, dims={"tokens": 16 * m, "k": 4096, "n": 4096}, time_us=31.2 + m) for m in range(1, 501)]
    path = tmp_path / "h200.measured"
    write_measured(path, rows)
    assert path.stat().st_size / len(rows) < 64
    assert len(lines_of(path)) == 4 + len(rows)


def test_figures_are_rounded_and_the_rounded_row_reads_back(tmp_path: Path) -> None:
    fine = replace(LINEAR, time_us=31.23456, spread=0.0123456, error=0.3456789)
    write_measured(tmp_path / "a.measured", [fine])
    assert read_measured(tmp_path / "a.measured").rows == (rounded(fine),)
    assert rounded(fine).time_us == 31.23


def test_a_row_that_no_reference_was_computed_for_has_no_error(tmp_path: Path) -> None:
    held_to_others = replace(LINEAR, error=None)
    write_measured(tmp_path / "a.measured", [held_to_others])
    assert "[[512,4096,4096],[31.2,0.012,null]," in (tmp_path / "a.measured").read_text()
    assert read_measured(tmp_path / "a.measured").rows == (rounded(held_to_others),) == (held_to_others,)


def test_a_truncated_file_loses_its_last_row_only(tmp_path: Path) -> None:
    path = tmp_path / "cut.measured"
    rows = [replace(LINEAR, dims={"tokens": 16 * m, "k": 4096, "n": 4096}, time_us=31.2 + m) for m in range(1, 11)]
    write_measured(path, rows)
    path.write_bytes(path.read_bytes()[:-9])
    found = read_measured(path)
    assert len(found.rows) == 9
    (refused,) = found.refused
    assert refused.line == 14
    assert refused.reason.startswith("malformed JSON: ")
    assert refused.reason.endswith("; a row is one line")


def test_bytes_that_are_no_text_spoil_their_own_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.measured"
    write_measured(path, [LINEAR, PAGED])
    lines = path.read_bytes().split(b"\n")
    lines[4] = b"\xff\xfe" + lines[4]
    path.write_bytes(b"\n".join(lines))
    found = read_measured(path)
    assert (len(found.rows), [bad.line for bad in found.refused]) == (1, [5])


def row_with(place: int, value: Any, of: int = 1) -> Callable[[Any], Any]:
    def edit(row: Any) -> Any:
        row[of][place] = value
        return row

    return edit


def heading_with(**fields: Any) -> Callable[[Any], Any]:
    return lambda heading: {**heading, **fields}


@pytest.mark.parametrize(
    ("line", "edit", "reason"),
    [
        (
            5,
            row_with(0, -16, of=0),
            "linear: `dims` expected a positive size for `tokens`, got -16; measure a real call",
        ),
        (
            5,
            row_with(0, 1.5, of=0),
            "linear: `dims` expected a positive size for `tokens`, got 1.5; measure a real call",
        ),
        (
            5,
            row_with(0, True, of=0),
            "linear: `dims` expected a positive size for `tokens`, got True; measure a real call",
        ),
        (
            5,
            row_with(0, 0),
            "linear: `time_us` expected a positive number of microseconds, got 0; measure again or drop the row",
        ),
        (
            5,
            row_with(0, None),
            "linear: `time_us` expected a positive number of microseconds, got None; measure again or drop the row",
        ),
        (
            5,
            lambda row: str(row).replace("31.2", "NaN").replace("None", "null"),
            "malformed JSON: NaN is not a finite number; a row is one line",
        ),
        (
            5,
            row_with(1, -0.1),
            "linear: `spread` expected a finite number, 0 or more, got -0.1; measure again or drop the row",
        ),
        (
            5,
            row_with(2, "0"),
            "linear: `error` expected a finite number, 0 or more, or null where the reference was not computed, got "
            "'0'; measure again or drop the row",
        ),
        (
            5,
            row_with(2, 1.5),
            "linear: `error` expected at most 1.0, the conformance bound, got 1.5; do not use that kernel: it is wrong",
        ),
        (
            5,
            row_with(0, 1.0),
            "linear: `time_us` expected at least 15.79 (sm_90 cannot do more than 1088 tflops in bf16 or "
            "move 41.94 MB in less), got 1; the clock missed some of the work: measure again",
        ),
        (
            5,
            lambda row: row[:1],
            "linear: `row` expected [[tokens, k, n], [time_us, spread, error]] and a config's name, got [[512, "
            "4096, 4096]]; write what the heading names",
        ),
        (
            5,
            lambda row: [row[0], [1.0], row[2]],
            "linear: `figures` expected [time_us, spread, error], or these and [flops, bytes], or why the "
            "config failed, got [1.0]; correct the row",
        ),
        (
            5,
            lambda row: [*row[:2], [128]],
            "linear: `config` expected the name of a config described above, got [128]; write its line, or "
            "drop the row",
        ),
        (
            5,
            lambda row: {"what": 1},
            "expected a machine, a config, a heading with `op`, or a row [[dims], [figures]]",
        ),
        (
            4,
            heading_with(op="linea"),
            "linea: `op` expected the name of an op, got 'linea'; did you mean linear? see `opmux ops`",
        ),
        (
            4,
            heading_with(implementation="a b"),
            "linear: `implementation` expected `backend` or `backend:name`, got 'a b'; write it as explain does",
        ),
        (
            4,
            heading_with(implementation="reference:quick"),
            "linear: `implementation` expected one of reference: reference, got 'reference:quick'; measure "
            "again with what is installed",
        ),
        (
            4,
            heading_with(dtypes="x=bf16"),
            "linear: `dtypes` expected a dtype for `w`, got none; add w=...",
        ),
        (
            4,
            heading_with(dtypes="x=bf16;w=bf17"),
            "linear: `dtypes` expected a dtype for `w`, as bf16 or float8_e4m3fn, got 'bf17'; correct the row",
        ),
        (
            4,
            heading_with(dtypes="x=bf16;w=bf16;z=bf16"),
            "linear: `dtypes` expected tensors of linear, got `z`; they are x, w, bias",
        ),
        (
            4,
            heading_with(dtypes=3),
            "linear: `dtypes` expected a text, as x=bf16;w=bf16, got 3; correct the heading",
        ),
        (
            4,
            heading_with(options="causal=true"),
            "linear: `options` expected options of linear, got `causal`; its options are out_dtype",
        ),
        (
            4,
            heading_with(options=3),
            "linear: `options` expected a text, as causal=true, got 3; correct the heading",
        ),
        (
            4,
            heading_with(dims=["tokens", "k"]),
            "linear: `dims` expected tokens, k, n, got tokens, k; name each once",
        ),
        (
            3,
            heading_with(values=[128]),
            'expected {"config": name, "values": {...}}; correct the line',
        ),
        (
            4,
            heading_with(compared=["other"]),
            "linear: `compared` expected `fast:wide` among them, got other; name its own too",
        ),
        (
            4,
            heading_with(machine="a100"),
            "machine 'a100' is not described above; write its line before the heading",
        ),
        (
            4,
            heading_with(dimss=[]),
            "unknown field `dimss`; did you mean dims? they are op, machine, implementation, dtypes, "
            "options, dims, compared",
        ),
        (
            2,
            heading_with(arch="sm_999"),
            "machine: `arch` expected one known arch, as sm_90 or gfx942, got 'sm_999'; did you mean sm_90? "
            "use the name in `opmux doctor`",
        ),
        (
            2,
            heading_with(device=""),
            "machine: `device` expected a text, got ''; write what `opmux doctor` shows",
        ),
        (
            2,
            heading_with(clock_mhz=-1),
            "machine: `clock_mhz` expected a finite number, 0 or more, got -1; correct the line",
        ),
        (
            2,
            heading_with(versions={"torch": 2}),
            "machine: `versions` expected an object of names and values, got {'torch': 2}; correct the line",
        ),
        (
            1,
            heading_with(version=2),
            "`version` expected 1, got 2; update opmux, or measure again with this one",
        ),
        (
            1,
            heading_with(format="x"),
            'expected a first line {"format": "opmux measured rows", "version": 1}, got another',
        ),
    ],
)
def test_what_is_refused(changed: Callable[..., str], line: int, edit: Callable[[Any], Any], reason: str) -> None:
    assert changed(line, edit) == reason


def test_rows_under_a_refused_heading_name_it(tmp_path: Path) -> None:
    path = tmp_path / "a.measured"
    write_measured(path, [LINEAR, PAGED])
    lines = lines_of(path)
    lines[3] = "{" + lines[3]
    path.write_text("\n".join(lines))
    found = read_measured(path)
    assert [row.op for row in found.rows] == ["paged_attention"]
    assert [bad.line for bad in found.refused] == [4, 5]
    assert found.refused[1].reason == (
        "a row without what its heading says: the heading in line 4 is refused; correct the heading"
    )


def test_rows_whose_config_is_refused_name_it(tmp_path: Path) -> None:
    path = tmp_path / "a.measured"
    write_measured(path, [LINEAR, PAGED])
    lines = lines_of(path)
    lines[2] = lines[2][:-2]
    path.write_text("\n".join(lines))
    found = read_measured(path)
    assert [row.op for row in found.rows] == ["paged_attention"]
    assert [bad.line for bad in found.refused] == [3, 5]
    assert found.refused[1].reason == (
        f"linear: `config` expected the name of a config described above, got {lines[4].split(',')[-1][1:-2]!r}; "
        "write its line, or drop the row"
    )


def test_a_row_without_a_heading_and_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.measured"
    path.write_text('{"format": "opmux measured rows", "version": 1}\n# a comment\n\n[[1], [1, 0, 0]]\n')
    (bad,) = read_measured(path).refused
    assert (bad.line, bad.reason) == (
        4, "a row without what its heading says: there is no heading; correct the heading",
    )  # fmt: skip
    path.write_text("")
    (bad,) = read_measured(path).refused
    assert bad.reason == 'expected a first line {"format": "opmux measured rows", ...}, got an empty file'


def test_writing_refuses_what_reading_would(tmp_path: Path) -> None:
    with pytest.raises(TunedRecordError, match="`time_us` expected a positive number"):
        write_measured(tmp_path / "a.measured", [replace(LINEAR, time_us=0.0)])
    assert list(tmp_path.iterdir()) == []


def test_one_label_for_two_machines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.measured"
    write_measured(path, [LINEAR])
    lines = lines_of(path)
    path.write_text("\n".join([*lines[:2], lines[1].replace("570.1", "580.2"), *lines[2:]]))
    found = read_measured(path)
    assert found.rows == (LINEAR,)
    (bad,) = found.refused
    assert bad.line == 3
    assert bad.reason == f"machine '{H200.label}' is described twice, differently; rename one of the two"


def test_a_hundred_thousand_rows_of_which_some_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.measured"
    write_measured(path, [LINEAR])
    label = json.loads(lines_of(path)[2])["config"]
    good = [f'[[{m},4096,4096],[100.5,0.01,0.2],"{label}"]' for m in range(1, 100_001)]
    for place in range(0, 100_000, 1000):
        good[place] = good[place].replace("100.5", "-1")
    path.write_text("\n".join([*lines_of(path)[:4], *good]))
    found = read_measured(path)
    # Of 100,000 rows every thousandth has a negative time, and from 12,000 tokens the time beats the datasheet.
    possible = sum(1 for row in found.rows if row.dims["tokens"] <= 3000)
    assert possible == 2997
    assert len(found.rows) + len(found.refused) == 100_000
    assert [bad.line for bad in found.refused][:3] == [5, 1005, 2005]
