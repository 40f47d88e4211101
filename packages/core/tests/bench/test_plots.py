"""The pictures of a run: what they show is what was measured."""

import dataclasses
from xml.etree import ElementTree

import pytest
from bench.test_results import GOOD, PEER, report

from opmux.bench.plots import contenders, marks_of, summary, svg_of
from opmux.bench.plots.summary import geometric_mean, shape_class, speedups, taken
from opmux.bench.results import Report

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()).strip() for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def run(**ops: list[tuple[float, float]]) -> Report:
    """A run in which each op has cases of a least time in us and a ratio to the best peer."""
    found = report(GOOD, PEER)
    (case,) = found.cases
    cases = [
        dataclasses.replace(case, op=op, least_us=least, contenders=(dataclasses.replace(GOOD, ratio=ratio), PEER))
        for op, measured in ops.items()
        for least, ratio in measured
    ]
    return dataclasses.replace(found, cases=tuple(cases))


def test_the_summary_has_a_row_for_each_op_with_its_mean_the_fastest_first() -> None:
    drawn = summary(run(linear=[(50.0, 0.9)], rms_norm=[(1.0, 1.0), (50.0, 4.0)]))
    shown = texts(svg_of(drawn))
    assert [t for t in shown if t in ("linear", "rms_norm")] == ["rms_norm", "linear"]
    assert [t for t in shown if t in ("2.00x", "0.90x")] == ["2.00x", "0.90x"]
    assert "Speedup over the best peer" in shown
    assert "Fraction of the roofline" in shown
    assert any(t.startswith("cpu, float32, torch 2  |  peers: torch eager  |  ceilings: copy ") for t in shown)


def test_points_lie_at_the_speedup_and_at_the_fraction() -> None:
    left, right = summary(run(linear=[(50.0, 1.5)])).axes
    (point,) = left.collections[0].get_offsets().tolist()
    assert point == [1.5, 0.0]
    peer, mine = (c.get_offsets().tolist() for c in right.collections)
    assert [*peer, *mine] == [[50.0, PEER.fraction], [50.0, GOOD.fraction]]


def test_speedups_off_the_scale_are_written_out() -> None:
    shown = texts(svg_of(summary(run(linear=[(50.0, 5.0), (60.0, 20.0), (70.0, 2.0)]))))
    assert any(t.startswith("5x to 20x") for t in shown)


def test_the_same_run_gives_the_same_text() -> None:
    assert svg_of(summary(report(GOOD, PEER))) == svg_of(summary(report(GOOD, PEER)))


@pytest.mark.parametrize(
    ("least", "bound", "expected"),
    [(1.0, "compute", "launch"), (50.0, "memory", "memory"), (50.0, "compute", "compute")],
)
def test_shape_classes(least: float, bound: str, expected: str) -> None:
    (case,) = report(GOOD).cases
    assert shape_class(dataclasses.replace(case, least_us=least, bound=bound)) == expected


def test_what_was_chosen_counts_else_the_fastest() -> None:
    fast = dataclasses.replace(GOOD, name="fast", chosen=False, median_us=5.0)
    (case,) = report(dataclasses.replace(GOOD, chosen=True), fast, PEER).cases
    assert taken(case).name == GOOD.name
    (case,) = report(dataclasses.replace(GOOD, chosen=False), fast, PEER).cases
    assert taken(case).name == "fast"
    (case,) = report(PEER).cases
    assert taken(case) is None
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_runs_without_peers_or_cases_are_drawn_too() -> None:
    alone = report(dataclasses.replace(GOOD, ratio=None))
    assert speedups(alone) == {}
    assert "No peer was timed" in texts(svg_of(summary(alone)))
    assert "No peer was timed" in texts(svg_of(summary(report())))
    assert contenders(report().cases, "none").axes[0].get_yticks().tolist() == []


def test_contenders_are_rows_of_cases_with_names_escaped() -> None:
    odd = dataclasses.replace(GOOD, name="a<b & c", median_us=5.0)
    found = report(odd, PEER)
    drawn = contenders(found.cases, "the title")
    shown = texts(svg_of(drawn))
    assert "small" in shown
    assert "the title" in shown
    assert {"a<b & c", "torch eager"} <= set(shown)
    assert "5.0 us" in shown
    # Speeds over the best peer's: the peer at 1, the implementation at twice its speed.
    points = [line.get_xdata()[0] for line in drawn.axes[0].lines if line.get_marker() not in ("", "None", None)]
    assert sorted(points) == [1.0, 2.0]


def test_a_contender_has_one_mark_in_all_pictures_of_a_run() -> None:
    other = dataclasses.replace(GOOD, name="other")
    marks = marks_of([*report(GOOD, PEER).cases, *report(other, PEER).cases])
    assert len({(m.colour, m.shape) for m in marks.values()}) == 3
    drawn = contenders(report(other).cases, "one", marks)
    assert marks["other"].colour in [line.get_markerfacecolor() for line in drawn.axes[0].lines]
