"""What `quantize_` did, as data and as a table."""

import pytest

from opmux.errors import InvalidArgument
from opmux.nn.quantization_report import QuantizationReport, QuantizedRow

ROWS = [
    QuantizedRow("up", "converted", "", (64, 16), 0.01234),
    QuantizedRow("lm_head", "left", "its weight is also that of embed", (101, 16)),
]


def test_the_table() -> None:
    report = QuantizationReport(ROWS, 0.5, 3 << 30, 1536 << 10, ["the model is on meta"])
    lines = [line.rstrip() for line in str(report).splitlines()]
    assert lines[0] == "1 linear layer converted, 1 left: 3.0 GiB of parameters before, 1.5 MiB after"
    assert lines[1].split() == ["layer", "shape", "error"]
    assert [line.split() for line in lines[2:4]] == [
        ["up", "64x16", "1.23%", "converted"],
        ["lm_head", "101x16", "left:", "its", "weight", "is", "also", "that", "of", "embed"],
    ]
    assert lines[4:] == ["error of the model's result: 50.00%", "note: the model is on meta"]


def test_without_a_calibration_there_are_no_errors() -> None:
    shown = str(QuantizationReport([QuantizedRow("up", "converted", "", (64, 16))] * 2, None, 1024, 1023))
    assert shown.startswith("2 linear layers converted, 0 left: 1.0 KiB of parameters before, 1023 bytes after\n")
    assert "%" not in shown
    assert "error of" not in shown


def test_rows_by_status() -> None:
    report = QuantizationReport(ROWS)
    assert (report.converted(), report.left()) == (ROWS[:1], ROWS[1:])
    assert (QuantizationReport().converted(), QuantizationReport().left()) == ([], [])


def test_undo_calls_what_puts_layers_back_once() -> None:
    calls: list[int] = []
    report = QuantizationReport(ROWS, _put_back=lambda: calls.append(1))
    report.undo()
    assert (calls, report.active) == ([1], False)
    assert str(report).startswith("1 linear layer converted, 1 left, undone: ")
    with pytest.raises(InvalidArgument) as refused:
        report.undo()
    assert str(refused.value) == (
        "QuantizationReport.undo: `self` expected a report in force, got one undone; there is nothing to undo"
    )
    assert calls == [1]


def test_an_undo_that_fails_can_be_tried_again() -> None:
    outcomes = [ArithmeticError("no"), None]

    def put_back() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    report = QuantizationReport(ROWS, _put_back=put_back)
    with pytest.raises(ArithmeticError):
        report.undo()
    assert report.active
    report.undo()
    assert not report.active


def test_layers_that_were_not_kept_cannot_be_put_back() -> None:
    with pytest.raises(InvalidArgument) as refused:
        QuantizationReport(ROWS).undo()
    assert str(refused.value) == (
        "QuantizationReport.undo: `self` expected a report with the original layers, got one without; "
        "pass keep=True to quantize_, which keeps them in memory"
    )
