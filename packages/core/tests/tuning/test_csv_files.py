"""What is written is read back, and what would be refused is not written."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opmux import tuning
from opmux.errors import TunedRecordError
from opmux.tuning import TunedRecord, gbps_of, load_records, tflops_of, write_records
from opmux.tuning.record import COLUMNS

RMS_NORM = TunedRecord(
    op="rms_norm",
    arch="gfx942",
    dtypes={"x": torch.bfloat16, "weight": torch.float32},
    dims={"tokens": 4096, "hidden": 8192},
    backend="triton:rows",
    time_us=1 / 3 * 1e3,
    error=0.1,
    compared=3,
    config={"block": 8192, "stages": [1, 2], "split": None, "name": 'a "b", c; d', "exact": True, "x": 0.1},
    opmux="0.1.0",
    backend_version="0.3.1",
    date="2026-01-31T10:00:00+00:00",
    note='cold cache, "quiet" machine; ünïcödé',
)
QUANTIZE = TunedRecord(
    op="quantize",
    arch="cpu",
    dtypes={"x": torch.float32},
    dims={"batch": 1, "m": 64, "k": 256},
    backend="reference",
    time_us=5.0,
    error=0.0,
    compared=1,
    options={"dtype": torch.float8_e4m3fn, "block": (1, -1), "scale_major": "m"},
)
ATTENTION = TunedRecord(
    op="attention_backward",
    arch="sm_90",
    dtypes=dict.fromkeys(("grad_out", "q", "k", "v", "out"), torch.float16) | {"lse": torch.float32},
    dims={"batch": 1, "seq_q": 8, "seq_k": 8, "heads": 2, "kv_heads": 1, "head_dim": 64, "value_dim": 64},
    backend="triton",
    time_us=50.0,
    error=1.0,
    compared=2,
    options={"causal": True, "scale": None, "softcap": 0.5, "output_mask": (True, True, True, False)},
    config={},
)


def test_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "new" / "records.csv"
    write_records(file, [RMS_NORM, QUANTIZE, ATTENTION])
    assert load_records(file) == [RMS_NORM, QUANTIZE, ATTENTION]
    assert file.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert [r.line for r in load_records(file)] == [2, 3, 4]
    before = file.read_bytes()
    write_records(file, load_records(file))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["records.csv"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
LINE = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30).map(str.strip)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=st.none() | st.dictionaries(st.text(), JSON, max_size=3),
    note=LINE,
    time_us=st.floats(1e2, 1e9),
    error=st.floats(0, 1),
    tokens=st.integers(1, 4096),
    compared=st.integers(1, 99),
)
def test_round_trip_of_anything(tmp_path: Path, config: Any, note: str, tokens: int, **figures: Any) -> None:
    made = dataclasses.replace(
        RMS_NORM, config=config, note=note, dims={"tokens": tokens, "hidden": 64}, arch="cpu", **figures
    )
    write_records(tmp_path / "records.csv", [made])
    assert load_records(tmp_path / "records.csv") == [made]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"time_us": 0.0}, "rms_norm: `time_us` expected a positive number of microseconds, got 0.0; "),
        ({"error": float("nan")}, "rms_norm: `error` expected a finite error, 0 or more, got nan; "),
        (
            {"compared": True},
            "rms_norm: `compared` expected how many implementations were measured, 1 or more, got True; ",
        ),
        ({"op": "nothing"}, "nothing: `op` expected the name of an op, got 'nothing'; "),
        ({"dims": {"tokens": 1.5, "hidden": 8}}, "rms_norm: `dims` expected a positive size for `tokens`, got 1.5; "),
        ({"note": "two\nlines"}, r"rms_norm: `note` expected one line, got 'two\\nlines'; a row is one line"),
        ({"note": " blank "}, "rms_norm: `record` expected values that read back as they are, got "),
        ({"config": {"tile": (1, 2)}}, r"rms_norm: `config` expected values that JSON preserves, got \{'tile': "),
        ({"config": {"x": float("inf")}}, r"rms_norm: `config` expected values that JSON can hold, got \{'x': inf\} "),
        ({"config": {"x": torch.bfloat16}}, r"rms_norm: `config` expected values that JSON can hold, got \{'x': torch"),
        ({"options": {"epsilon": 1.0}}, "rms_norm: `options` expected options of rms_norm, got `epsilon`; "),
        ({"options": {"eps": "small"}}, "rms_norm: `eps` expected a float, got 'small' "),
    ],
)
def test_what_would_be_refused_is_not_written(tmp_path: Path, change: dict, text: str) -> None:
    file = tmp_path / "records.csv"
    write_records(file, [QUANTIZE])
    with pytest.raises(TunedRecordError, match=rf"^records\[1\]: {text}"):
        write_records(file, [RMS_NORM, dataclasses.replace(RMS_NORM, **change)])
    assert load_records(file) == [QUANTIZE]


def test_the_figures_that_follow_from_the_time() -> None:
    linear = TunedRecord(
        op="linear",
        arch="sm_90",
        dtypes={"x": torch.bfloat16, "w": torch.bfloat16},
        dims={"tokens": 1000, "k": 2000, "n": 4000},
        backend="triton",
        time_us=100.0,
        error=0.1,
        compared=2,
    )
    assert tflops_of(linear) == pytest.approx(2 * 1000 * 2000 * 4000 / 100e-6 / 1e12)
    size = 2 * (1000 * 2000 + 4000 * 2000 + 1000 * 4000)
    assert gbps_of(linear) == pytest.approx(size / 100e-6 / 1e9)
    tuning.check_record(dataclasses.replace(linear, tflops=tflops_of(linear), gbps=gbps_of(linear)))
    assert tflops_of(RMS_NORM) is None
    backward = dataclasses.replace(linear, op="linear_backward", options={"output_mask": (True, False, False)})
    assert tflops_of(backward) == pytest.approx(tflops_of(linear)), "one product, of the two that the default wants"
    cache = {"pages": 64, "page_size": 16, "tokens": 4, "kv_heads": 1, "head_dim": 8, "value_dim": 8}
    names = ("k", "v", "k_cache", "v_cache")
    write = dataclasses.replace(
        linear,
        op="write_kv_cache",
        dims=cache,
        dtypes=dict.fromkeys(names, torch.float16) | {"slot_mapping": torch.int64},
    )
    assert gbps_of(write) is None
    in_place = dataclasses.replace(
        linear,
        op="add_rms_norm_",
        dtypes=dict.fromkeys(("x", "residual", "weight"), torch.float32),
        dims={"tokens": 10, "hidden": 100},
    )
    assert gbps_of(in_place) == pytest.approx(4 * (2 * 1000 + 2 * 1000 + 100) / 100e-6 / 1e9)


def test_a_written_file_is_taken_into_force(folder: Path, mine, row: Callable) -> None:
    made = dataclasses.replace(
        RMS_NORM,
        arch="cpu",
        dtypes=dict.fromkeys(("x", "weight"), torch.float32),
        backend="mine",
        dims={"tokens": 8, "hidden": 4},
    )
    write_records(folder / "mine.csv", [made])
    assert tuning.reload().ops == {"rms_norm": 1}
    import opmux

    assert opmux.explain(opmux.rms_norm, torch.ones(8, 4), torch.ones(4)).config == RMS_NORM.config
