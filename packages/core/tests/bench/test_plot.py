"""The bar plot."""

import dataclasses
from xml.etree import ElementTree

from bench.test_results import GOOD, PEER, report

from opmux.bench.plot import svg

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_the_times() -> None:
    slow = dataclasses.replace(PEER, median_us=20.0, q3_us=20.0)
    root = ElementTree.fromstring(svg(report(GOOD, slow)))
    widths = [float(bar.get("width")) for bar in root.findall(f"{SVG}rect")[1:]]
    assert widths[0] * 2 == widths[1]


def test_texts_say_case_name_time_and_ratio_and_are_escaped() -> None:
    odd = dataclasses.replace(GOOD, name="a<b & c")
    root = ElementTree.fromstring(svg(report(odd, PEER)))
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert texts == [
        "opmux bench: cpu, cpu, float32, torch 2",
        "rms_norm, small",
        "a<b & c",
        "10.0 us, 1.10x",
        "torch eager",
        "10.0 us",
    ]


def test_a_case_without_contenders_has_no_bars() -> None:
    root = ElementTree.fromstring(svg(report()))
    assert len(root.findall(f"{SVG}rect")) == 1
