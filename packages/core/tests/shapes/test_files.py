"""Files of shapes: read back as written, refused by line, never evaluated."""

import errno
import json
from pathlib import Path

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument
from opmux.shapes import Point, read_shapes, write_shapes

NORM = {"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 4, "hidden": 8}}
VARLEN = Point(
    "attention_varlen",
    dict.fromkeys(("q", "k", "v"), torch.bfloat16) | dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.int32),
    {"tokens_q": 64, "heads": 4, "head_dim": 64, "tokens_k": 64, "kv_heads": 2, "value_dim": 64, "batch": 3},
    {"max_seqlen_q": 32, "max_seqlen_k": 32, "window": (4, 0), "scale": 0.5},
    7,
)
QUANTIZED = Point(
    "quantize", {"x": torch.float32}, {"batch": 1, "m": 8, "k": 64}, {"dtype": torch.float8_e4m3fn, "block": (1, 32)}
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "shapes.json"
    path.write_text(text)
    return path


def test_points_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    points = [VARLEN, QUANTIZED]
    write_shapes(tmp_path / "shapes.json", points)
    assert read_shapes(tmp_path / "shapes.json") == points
    assert read_shapes(written(tmp_path, "[]\n")) == []
    assert VARLEN.key == (
        "attention_varlen q=bf16 k=bf16 v=bf16 cu_seqlens_q=i32 cu_seqlens_k=i32 tokens_q=64 heads=4 head_dim=64 "
        "tokens_k=64 kv_heads=2 value_dim=64 batch=3 max_seqlen_k=32 max_seqlen_q=32 scale=0.5 window=4,0"
    )


@pytest.mark.parametrize(("given", "meant"), [("bf16", {}), ("f32", {"out_dtype": torch.float32})])
def test_the_dtype_that_a_result_has_anyway_is_no_option_of_a_shape(tmp_path: Path, given: str, meant: dict) -> None:
    shape = {
        "op": "linear", "dtypes": {"x": "bf16", "w": "bf16"}, "dims": {"tokens": 4, "k": 8, "n": 8},
        "options": {"out_dtype": given},
    }  # fmt: skip
    (point,) = read_shapes(written(tmp_path, json.dumps([shape])))
    assert point.options == meant


REFUSED = [
    ("", "1: expected a JSON list of shapes, as [{"),
    ('{"op": "rms_norm"}', "1: expected a JSON list of shapes, as [{"),
    ("[\n{,\n]", "2: malformed JSON: Expecting property name enclosed in double quotes"),
    (f"[\n{json.dumps(NORM)}\n{json.dumps(NORM)}]", "2: malformed JSON: expected ',' or ']' after a shape"),
    (f"[{json.dumps(NORM)}]\n\n1", "3: malformed JSON: expected nothing after the list"),
    ('[{"op": NaN}]', "1: malformed JSON: NaN is not JSON"),
    ('[{"op": "a", "op": "b"}]', "1: malformed JSON: the key 'op' appears twice"),
    ("[" * 100_000, "1: malformed JSON: "),
    ("[\n\n7]", "3: expected an object, as {"),
]
"""Text -> the line and reason of its refusal."""

WRONG = [
    ({"ops": 1}, "unknown field `ops`; did you mean op? they are op, dtypes, dims, options, count"),
    ({"dims": None}, "`dims` expected an object, got null"),
    ({"count": True}, "`count` expected a whole number, got true"),
    ({"count": 0}, "rms_norm: `count` expected how often the call was made, 1 or more, got 0; omit it"),
    ({"op": "rms_nrm"}, "`op` expected the name of an op, got 'rms_nrm'; did you mean rms_norm? see `opmux ops`"),
    ({"op": "__import__('os')"}, "`op` expected the name of an op, got \"__import__('os')\"; see `opmux ops`"),
    ({"dtypes": {"x": "bf16"}}, "rms_norm: `dtypes` expected a value for `weight`, got none; add it"),
    (
        {"dtypes": {"x": "bf17", "weight": "bf16"}},
        'rms_norm: `dtypes` expected a dtype for `x`, as bf16, got "bf17"; correct it',
    ),
    ({"dims": {"tokens": 4}}, "rms_norm: `dims` expected a value for `hidden`, got none; add it"),
    (
        {"dims": {"tokens": -4, "hidden": 8}},
        "rms_norm: `dims` expected a positive whole number for `tokens`, got -4; record a real call",
    ),
    (
        {"dims": {"tokens": 4, "hidden": 8, "hiden": 8}},
        "rms_norm: `dims` expected dims of rms_norm, got `hiden`; did you mean hidden? they are tokens, hidden",
    ),
    (
        {"dims": {"tokens": 2**39, "hidden": 2**39}},
        "rms_norm: `dims` expected sizes of tensors that torch can hold, got ",
    ),
    ({"options": {"eps": "x"}}, "rms_norm: `eps` expected a float, got "),
    ({"options": {"epsilon": 1}}, "rms_norm: `options` expected options of rms_norm, got `epsilon`; "),
    ({"dtypes": {"x": "i32", "weight": "bf16"}}, "rms_norm: `x` expected "),
]
"""Fields of a shape that replace those of `NORM` -> the reason of its refusal."""


@pytest.mark.parametrize(("text", "told"), REFUSED, ids=[told[:40] for _, told in REFUSED])
def test_what_is_no_list_of_shapes_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidArgument) as refused:
        read_shapes(path)
    assert str(refused.value).startswith(f"{path}:{told}")


@pytest.mark.parametrize(("fields", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_a_shape_that_the_op_would_refuse_is_refused_with_its_line(tmp_path: Path, fields, told: str) -> None:
    path = written(tmp_path, f"[\n{json.dumps(NORM)},\n{json.dumps(NORM | fields)}\n]")
    with pytest.raises(InvalidArgument) as refused:
        read_shapes(path)
    assert str(refused.value).startswith(f"{path}:3: {told}")


def test_the_first_refusal_says_how_many_follow(tmp_path: Path) -> None:
    path = written(tmp_path, "[\n1,\n2,\n3]")
    with pytest.raises(InvalidArgument, match=r":2: expected an object.* \(and 2 more\)$"):
        read_shapes(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_bytes(b"[\xff]")
    with pytest.raises(InvalidArgument) as refused:
        read_shapes(path)
    assert str(refused.value) == f"{path}: expected a JSON file in UTF-8, got bytes that are not (invalid start byte)"


def test_a_trace_writes_the_shapes_of_its_calls_with_their_counts(tmp_path: Path) -> None:
    path, weight = tmp_path / "shapes.json", torch.ones(8)
    with opmux.trace(record_shapes=path):
        for _ in range(3):
            opmux.rms_norm(torch.ones(4, 8), weight)
        opmux.rms_norm(torch.ones(2, 2, 8), weight, out=torch.empty(2, 2, 8))
        opmux.rms_norm(torch.ones(0, 8), weight)
        opmux.quantize(torch.ones(8, 64), dtype=torch.float8_e4m3fn, block=[1, 32])
    norm, quantized = read_shapes(path)
    assert norm == Point("rms_norm", dict.fromkeys(("x", "weight"), torch.float32), {"tokens": 4, "hidden": 8}, {}, 4)
    assert quantized == QUANTIZED


def test_a_trace_refuses_a_folder_that_does_not_exist_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "none" / "shapes.json"
    with pytest.raises(InvalidArgument) as refused, opmux.trace(record_shapes=path):
        pytest.fail("the block ran")
    assert str(refused.value) == (
        f"trace: `record_shapes` expected a file in a folder that exists, got {path}; make the folder"
    )


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InvalidArgument) as refused, opmux.trace(record_shapes=tmp_path / "shapes.json"):
        opmux.rms_norm(torch.ones(4, 8), torch.ones(8))
    assert str(refused.value) == (
        "trace: `record_shapes` cannot be written: [Errno 28] No space left on device; choose another file"
    )
    assert list(tmp_path.iterdir()) == []
