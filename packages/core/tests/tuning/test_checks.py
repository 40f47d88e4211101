"""Every reason why a row, or a file, does not count, in its words; and that the rows beside it still do."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from opmux import tuning
from opmux.errors import TunedRecordError

LINEAR = {
    "op": "linear",
    "arch": "sm_90",
    "dtypes": "x=bf16;w=bf16",
    "dims": "tokens=4096;k=4096;n=4096",
    "time_us": "200",
}
ATTENTION = {
    "op": "attention",
    "arch": "sm_90",
    "dtypes": "q=bf16;k=bf16;v=bf16",
    "dims": "batch=4;seq_q=4096;seq_k=4096;heads=32;kv_heads=8;head_dim=128;value_dim=128",
    "time_us": "2000",
}
QUANTIZE = {"op": "quantize", "dtypes": "x=bf16", "dims": "batch=1;m=64;k=256", "options": "dtype=e4m3fn"}
VARLEN = {
    "op": "attention_varlen",
    "dtypes": "q=bf16;k=bf16;v=bf16;cu_seqlens_q=i32;cu_seqlens_k=i32",
    "dims": "tokens_q=64;tokens_k=64;batch=2;heads=8;kv_heads=8;head_dim=64;value_dim=64",
    "options": "max_seqlen_q=32;max_seqlen_k=32",
}
CACHE = {
    "op": "write_kv_cache",
    "dtypes": "k=bf16;v=bf16;k_cache=bf16;v_cache=bf16;slot_mapping=i64",
    "dims": "tokens=64;kv_heads=8;head_dim=128;value_dim=128;pages=512;page_size=16",
}
DTYPE_NAMES = "a dtype of Real (bfloat16, float16, float32, float64)"
OPTIONS_OF_ATTENTION = "its options are scale, causal, window, softcap"

REFUSED = [
    # what the row names
    (
        {"op": "rms_nrm"},
        "rms_nrm: `op` expected the name of an op, got 'rms_nrm'; did you mean rms_norm? see `opmux ops`",
    ),
    ({"op": "zzz"}, "zzz: `op` expected the name of an op, got 'zzz'; see `opmux ops`"),
    ({"op": ""}, "a row: `op` expected the name of an op, got ''; see `opmux ops`"),
    *(
        (
            {"arch": arch},
            f"rms_norm: `arch` expected one known arch, as sm_90 or gfx942, got '{arch}'; {meant}"
            "use the name in `opmux doctor`",
        )
        for arch, meant in (
            ("H100", ""),
            ("sm_80+", "did you mean sm_80? "),
            ("gfx9*", "did you mean gfx950? "),
            ("sm_90a", "did you mean sm_90? "),
            ("sm_999", "did you mean sm_90? "),
            ("gfx942:sramecc+", ""),
        )
    ),
    (
        {"dtypes": "bf16"},
        "rms_norm: `dtypes` expected name=value pairs joined by `;`, as x=bf16;weight=bf16, got 'bf16'; "
        "correct the row",
    ),
    (
        {"dtypes": "x=bf61;weight=bf16"},
        "rms_norm: `dtypes` expected a dtype for `x`, as bf16 or float8_e4m3fn, got 'bf61'; correct the row",
    ),
    (
        {"dtypes": "x=bf16;wieght=bf16"},
        "rms_norm: `dtypes` expected dtypes of rms_norm, got `wieght`; did you mean weight? they are x, weight",
    ),
    ({"dtypes": "x=bf16"}, "rms_norm: `dtypes` expected a value for `weight`, got none; add weight=..."),
    (
        {"dtypes": "x=bf16;x=f16;weight=f16"},
        "rms_norm: `dtypes` expected each name once, as x=bf16;weight=bf16, got `x` twice; drop one",
    ),
    (
        {"dtypes": "x=i8;weight=bf16"},
        f"rms_norm: `x` expected {DTYPE_NAMES}, got int8; cast it with .to(torch.bfloat16)",
    ),
    (
        {**LINEAR, "dtypes": "x=bf16;w=f16"},
        "linear: `w` expected bfloat16, the dtype of `x`, got float16; cast one of them with .to(torch.bfloat16)",
    ),
    (
        {"options": "eps"},
        "rms_norm: `options` expected name=value pairs joined by `;`, as causal=true, got 'eps'; correct the row",
    ),
    (
        {**ATTENTION, "options": "casual=true"},
        "attention: `options` expected options of attention, got `casual`; did you mean causal? "
        f"{OPTIONS_OF_ATTENTION}",
    ),
    (
        {**ATTENTION, "options": "causal=yes"},
        "attention: `options` expected a value of kind bool for `causal`, got 'yes'; correct the row",
    ),
    (
        {**ATTENTION, "options": "window=3"},
        "attention: `options` expected 2 ints for `window`, got '3'; correct the row",
    ),
    (
        {"op": "gelu_and_mul", "dtypes": "x=f32", "dims": "tokens=8;n=8", "options": "approximate=erf"},
        "gelu_and_mul: `options` expected 'none' or 'tanh' for `approximate`, got 'erf'; correct the row",
    ),
    ({**QUANTIZE, "options": ""}, "quantize: `options` expected a value for `dtype`, got none; add dtype=..."),
    (
        {**QUANTIZE, "options": "dtype=fp9"},
        "quantize: `options` expected a dtype for `dtype`, as bf16 or float8_e4m3fn, got 'fp9'; correct the row",
    ),
    (
        {**VARLEN, "options": "max_seqlen_q=32"},
        "attention_varlen: `options` expected a value for `max_seqlen_k`, got none; add max_seqlen_k=...",
    ),
    (
        {"dims": "tokens:128"},
        "rms_norm: `dims` expected name=value pairs joined by `;`, as tokens=4096;hidden=8192, got 'tokens:128'; "
        "correct the row",
    ),
    (
        {"dims": "tokens=128;hiden=64"},
        "rms_norm: `dims` expected dims of rms_norm, got `hiden`; did you mean hidden? they are tokens, hidden",
    ),
    ({"dims": "tokens=128"}, "rms_norm: `dims` expected a value for `hidden`, got none; add hidden=..."),
    (
        {"dims": "tokens=many;hidden=64"},
        "rms_norm: `dims` expected a whole number for `tokens`, got 'many'; correct the row",
    ),
    (
        {"dims": "tokens=0;hidden=64"},
        "rms_norm: `dims` expected a positive size for `tokens`, got 0; measure a real call",
    ),
    (
        {"dims": "tokens=-4;hidden=64"},
        "rms_norm: `dims` expected a positive size for `tokens`, got -4; measure a real call",
    ),
    (
        {"dims": f"tokens={2**41};hidden=64"},
        f"rms_norm: `dims` expected a positive size for `tokens`, got {2**41}; measure a real call",
    ),
    *(
        (
            {"backend": name},
            f"rms_norm: `backend` expected `backend` or `backend:name`, got '{name}'; write it as explain does",
        )
        for name in ("my backend", "triton:", ":rows", "triton:a:b", "3x")
    ),
    # the config
    (
        {"config": "{block: 3}"},
        "rms_norm: `config` expected a JSON object, as {\"block_m\": 128}, got '{block: 3}' (Expecting property name "
        "enclosed in double quotes: line 1 column 2 (char 1)); correct the row; CSV doubles quotes",
    ),
    ({"config": "[1]"}, "rms_norm: `config` expected a JSON object, as {\"block_m\": 128}, got '[1]'; correct the row"),
    (
        {"config": '{"a": NaN}'},
        'rms_norm: `config` expected a JSON object, as {"block_m": 128}, got \'{"a": NaN}\' (NaN is not JSON); '
        "correct the row; CSV doubles quotes",
    ),
    (
        {"config": '{"a": 1, "a": 2}'},
        'rms_norm: `config` expected a JSON object, as {"block_m": 128}, got \'{"a": 1, "a": 2}\' (a key appears twice)'
        "; correct the row; CSV doubles quotes",
    ),
    # the figures
    *(
        (
            {"time_us": text},
            f"rms_norm: `time_us` expected a finite number, got '{text}'; measure again or drop the row",
        )
        for text in ("fast", "nan", "inf", "-inf")
    ),
    *(
        (
            {"time_us": text},
            f"rms_norm: `time_us` expected a positive number of microseconds, got {value}; "
            "measure again or drop the row",
        )
        for text, value in (("0", "0.0"), ("-3", "-3.0"))
    ),
    *(
        ({name: ""}, f"rms_norm: `{name}` expected a value, got an empty field; fill it in or drop the row")
        for name in ("arch", "dtypes", "dims", "backend", "time_us", "error", "compared")
    ),
    ({"error": "nan"}, "rms_norm: `error` expected a finite number, got 'nan'; measure again or drop the row"),
    (
        {"error": "-0.5"},
        "rms_norm: `error` expected a finite error, 0 or more, got -0.5; measure again or drop the row",
    ),
    (
        {"error": "1.01"},
        "rms_norm: `error` expected at most 1.0, the conformance bound, got 1.01; do not use that kernel: it is wrong",
    ),
    ({"compared": "1.5"}, "rms_norm: `compared` expected a whole number, got '1.5'; correct the row"),
    (
        {"compared": "0"},
        "rms_norm: `compared` expected how many implementations were measured, 1 or more, got 0; "
        "count the record's own",
    ),
    (
        {"date": "31.1.2026"},
        "rms_norm: `date` expected an ISO 8601 date, as 2026-01-31, got '31.1.2026'; correct the row or leave it empty",
    ),
    # the figures against each other
    (
        {**LINEAR, "tflops": "702"},
        "linear: `tflops` expected 687.2 (from dims and time_us, within 2%), got 702; one of the three is wrong: "
        "measure again",
    ),
    (
        {"tflops": "3"},
        "rms_norm: `tflops` expected nothing, since the op states no flops, got 3; leave it empty",
    ),
    (
        {"gbps": "7"},
        "rms_norm: `gbps` expected 6.579 (from dims and time_us, within 2%), got 7; one of the three is wrong: "
        "measure again",
    ),
    (
        {**CACHE, "gbps": "7"},
        "write_kv_cache: `gbps` expected nothing, since the call reads a part of its buffers only, got 7; "
        "leave it empty",
    ),
    # what the arch cannot do
    (
        {**LINEAR, "time_us": "100"},
        "linear: `time_us` expected at least 126.3 (sm_90 does at most 1088 tflops in bf16), got 100; the clock missed "
        "some of the work: measure again",
    ),
    (
        {"arch": "gfx942", "dims": "tokens=65536;hidden=8192", "time_us": "100"},
        "rms_norm: `time_us` expected at least 616.8 (gfx942 cannot move 4295 MB in less), got 100; the clock missed "
        "some of the work: measure again",
    ),
    (
        {"arch": "sm_90", "dims": "tokens=1024;hidden=4096", "time_us": "0.1"},
        "rms_norm: `time_us` expected at least 0.7785 (sm_90 cannot move 33.57 MB in less), got 0.1; the clock missed "
        "some of the work: measure again",
    ),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=[f"{i}-{c}" for i, (c, _) in enumerate(REFUSED)])
def test_a_row_is_refused_in_these_words(folder: Path, put, row: Callable, fields: dict, text: str) -> None:
    file = put(folder / "records.csv", row(), row(**fields), row(dims="tokens=256;hidden=64"))
    report = tuning.reload()
    assert [(r.layer, r.file, r.line, r.reason) for r in report.refused] == [("environment", str(file), 3, text)]
    assert [(f.records, f.refused) for f in report.files] == [(2, 1)]
    assert report.ops == {"rms_norm": 2}


ACCEPTED = [
    {},
    {"compared": "1", "config": "", "error": "0"},
    {"error": "1"},
    {"date": "2026-01-31", "note": "quiet machine, fans at 100 %", "opmux": "0.1.0", "backend_version": "1.2"},
    {"gbps": "6.6"},
    {**LINEAR, "tflops": "690"},
    {**LINEAR, "time_us": "130"},
    {**LINEAR, "arch": "sm_88", "time_us": "0.001"},  # no peaks are known of it: not checked
    {**LINEAR, "dtypes": "x=bf16;w=bf16;bias=bf16"},
    {**ATTENTION, "options": "causal=true", "time_us": "600"},  # half of the work that the flops expression counts
    {**ATTENTION, "options": "window=128,0", "time_us": "100"},
    {**ATTENTION, "options": "causal=true;softcap=30.0;scale=none"},
    {**QUANTIZE, "options": "dtype=float8_e4m3fn;block=1,-1;scale_major=m"},
    VARLEN,
    CACHE,
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=[str(i) for i in range(len(ACCEPTED))])
def test_a_row_is_accepted(folder: Path, put, row: Callable, fields: dict) -> None:
    put(folder / "records.csv", row(**fields))
    report = tuning.reload()
    assert report.refused == ()
    assert [(f.layer, f.records) for f in report.files] == [("environment", 1)]


def test_causal_attention_faster_than_half_the_peak_is_refused(folder: Path, put, row: Callable) -> None:
    put(folder / "records.csv", row(**{**ATTENTION, "options": "causal=true", "time_us": "480"}))
    (refusal,) = tuning.reload().refused
    assert refusal.reason.startswith("attention: `time_us` expected at least 505.3 (sm_90 does at most 1088 tflops")


def test_a_row_that_the_op_itself_refuses(folder: Path, put, row: Callable) -> None:
    uneven = ATTENTION["dims"].replace("kv_heads=8", "kv_heads=3")
    put(folder / "records.csv", row(**{**ATTENTION, "dims": uneven}))
    (refusal,) = tuning.reload().refused
    assert "heads % kv_heads == 0, got heads = 32, kv_heads = 3; query heads are shared evenly" in refusal.reason


def test_a_repeated_row_is_refused_within_a_layer(folder: Path, put, row: Callable) -> None:
    put(folder / "a.csv", row(), row(time_us="11"))
    put(folder / "b.csv", row(time_us="12"), row(backend="other"))
    text = (
        "rms_norm: the row expected to be the only one of its layer for this arch, dtypes, options, dims and backend, "
        "got a second one after a.csv:2; keep one"
    )
    report = tuning.reload()
    assert [(Path(r.file).name, r.line, r.reason) for r in report.refused] == [("a.csv", 3, text), ("b.csv", 2, text)]
    assert report.ops == {"rms_norm": 2}


def test_dims_that_are_not_matched_do_not_tell_rows_apart(folder: Path, put, row: Callable) -> None:
    larger = {**CACHE, "dims": CACHE["dims"].replace("pages=512", "pages=1024")}
    put(folder / "records.csv", row(**CACHE), row(**larger))
    assert [r.line for r in tuning.reload().refused] == [3]


GOOD_LINES = (
    "op,arch,dtypes,dims,backend,time_us,error,compared",
    'rms_norm,cpu,x=f32;weight=f32,"tokens=1;hidden=8",mine,1,0,1',
    "rms_norm,cpu,x=f32;weight=f32,tokens=2;hidden=8,mine,1,0,1",
)
COLUMNS = (
    "op, arch, dtypes, options, dims, backend, config, time_us, tflops, gbps, error, compared, opmux, backend_version, "
    "date, note"
)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('rms_norm,cpu,x=f32;weight=f32,"tokens=1', "malformed CSV: unexpected end of data; a row is one line, quotes "
         "inside a field are doubled"),
        ("rms_norm,cpu", "expected 8 fields as in the header, got 2; quote fields with commas"),
        (GOOD_LINES[1] + ",more", "expected 8 fields as in the header, got 9; quote fields with commas"),
    ],
)  # fmt: skip
def test_a_malformed_line_spoils_itself_only(folder: Path, line: str, text: str) -> None:
    (folder / "records.csv").write_text("\r\n".join(["# by hand", GOOD_LINES[0], line, "", *GOOD_LINES[1:]]))
    report = tuning.reload()
    assert [(r.line, r.reason) for r in report.refused] == [(3, text)]
    assert report.ops == {"rms_norm": 2}


NO_HEADER = (
    "expected a header naming columns (op, arch, dtypes, dims, backend, time_us, error, compared, ...), "
    "got an empty file"
)
BROKEN_LINE = "malformed CSV: unexpected end of data; a row is one line, quotes inside a field are doubled"
GUESS = "did you mean dtypes? the columns are"
NO_ERROR = "header: column `error` is missing; required are op, arch, dtypes, dims, backend, time_us, error, compared"
NO_TEXT = "cannot be read: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        (b"", 1, NO_HEADER),
        (b"# nothing yet\n\n", 1, NO_HEADER),
        (b"op,arch,dytpes\n", 1, f"header: unknown column `dytpes`; {GUESS} {COLUMNS}"),
        (b"op;arch;dtypes\n", 1, f"header: unknown column `op;arch;dtypes`; {GUESS} {COLUMNS}"),
        (b"op,arch,op\n", 1, "header: column `op` appears twice; drop one"),
        (b"op,arch,dtypes,dims,backend,time_us,compared\n", 1, NO_ERROR),
        (b'op,"arch\n', 1, BROKEN_LINE),
        (b"\xff\xfe\x00", None, NO_TEXT),
    ],
)
def test_a_file_is_refused_and_the_others_are_read(
    folder: Path, put, row: Callable, content: bytes, line: int | None, text: str
) -> None:
    (folder / "a.csv").write_bytes(content)
    put(folder / "b.csv", row())
    report = tuning.reload()
    assert [(Path(r.file).name, r.line, r.reason) for r in report.refused] == [("a.csv", line, text)]
    assert report.ops == {"rms_norm": 1}


def test_what_excel_writes_is_read(folder: Path) -> None:
    (folder / "records.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(GOOD_LINES).encode() + b"\r\n")
    report = tuning.reload()
    assert (report.refused, report.ops) == ((), {"rms_norm": 2})


def test_load_records_names_file_and_line(folder: Path, put, row: Callable) -> None:
    file = put(folder / "records.csv", row(), row(time_us="0"), row(error="2"))
    with pytest.raises(TunedRecordError) as caught:
        tuning.load_records(file)
    assert str(caught.value) == (
        f"{file}:3: rms_norm: `time_us` expected a positive number of microseconds, got 0.0; measure again or drop the "
        "row (and 1 more)"
    )
    with pytest.raises(TunedRecordError, match=r"gone\.csv: cannot be read: FileNotFoundError: "):
        tuning.load_records(folder / "gone.csv")


def test_load_records_gives_the_records(folder: Path, put, row: Callable) -> None:
    file = put(folder / "records.csv", row(), row(dims="hidden=8;tokens=3", config=""))
    first, second = tuning.load_records(file)
    assert (first.config, first.where, first.compared) == ({"block": 64}, "records.csv:2", 2)
    assert (second.config, second.where, second.dims) == (None, "records.csv:3", {"tokens": 3, "hidden": 8})


def test_refusals_are_logged_once(folder: Path, put, row: Callable, caplog: pytest.LogCaptureFixture) -> None:
    file = put(folder / "records.csv", row(), row(time_us="0"), row(error="2"))
    (folder / "other.json").write_text("{}")
    (folder / "README.md").write_text("about these records")
    with caplog.at_level(logging.WARNING, logger="opmux"):
        tuning.reload()
        tuning.reload()
    assert caplog.messages == [
        f"tuned records: 2 of 3 rows of {file} are refused, the first at line 3: rms_norm: `time_us` expected a "
        "positive number of microseconds, got 0.0; measure again or drop the row; `opmux doctor` lists them",
        f"tuned records: {folder / 'other.json'}: no reader for `.json`; there are .csv, .measured",
    ]


def test_the_report_is_data_and_prints(folder: Path, put, row: Callable) -> None:
    file = put(folder / "records.csv", row(), row(compared="0"))
    report = tuning.reload()
    assert tuning.report() == report
    reason = (
        "rms_norm: `compared` expected how many implementations were measured, 1 or more, got 0; count the record's own"
    )
    assert report.as_dict() == {
        "files": [{"layer": "environment", "file": str(file), "records": 1, "refused": 1}],
        "refused": [{"layer": "environment", "file": str(file), "line": 3, "reason": reason}],
        "ops": {"rms_norm": 1},
        "measured": {},
    }
    assert str(report).splitlines() == [
        "layer        records  refused  file",
        f"environment        1        1  {file}",
        "refused",
        f"  {file}:3: {reason}",
    ]
    assert str(tuning.TuningReport()) == "no tuned records"
