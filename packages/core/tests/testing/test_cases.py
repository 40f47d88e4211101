"""The cases: complete in what a signature leaves open, valid, the same in every process, made again from their ids."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opmux
from opmux.callpath.op import OPS
from opmux.errors import InvalidArgument
from opmux.signatures.signature import REFUSED
from opmux.signatures.validation import check_call
from opmux.testing import cases_of, parse_case
from opmux.testing.cases import is_valid
from opmux.testing.choices import ALTERNATIVES, alternatives, dtype_combinations
from opmux.testing.memory import VIEWS
from opmux.testing.model_shapes import MODELS
from opmux.testing.odd import draw_odd, one_of
from opmux.testing.profiles import PROFILES

ALL = sorted(OPS)


@pytest.mark.parametrize("op", ALL)
def test_every_id_makes_its_case_again(op: str) -> None:
    cases = cases_of(op, "small", gpu=True)
    assert len({case.id for case in cases}) == len(cases) > 30
    for case in cases:
        again = parse_case(op, case.id)
        assert again.id == case.id
        assert (again.shapes, again.dtypes, again.options) == (case.shapes, case.dtypes, case.options)


@pytest.mark.parametrize("op", ALL)
def test_ids_are_safe_in_a_quoted_command(op: str) -> None:
    for case in cases_of(op, "small", gpu=True):
        assert re.fullmatch(r"[\w=,.@:+-]+", case.id), case.id


@pytest.mark.parametrize("op", ALL)
def test_what_a_signature_leaves_open_is_tried(op: str) -> None:
    signature, cases = OPS[op].signature, cases_of(op, "small")
    first = signature.tensors[0]
    assert {c.dtypes[first.name] for c in cases} == first.dtypes
    for tensor in signature.tensors:
        if tensor.optional:
            assert {tensor.name in c.dtypes for c in cases} == {True, False}
    for option, values in alternatives(signature):
        tried = {c.options.get(option.name, option.default) for c in cases}
        assert tried >= set(values)
    assert {c.view for c in cases} == set(VIEWS)
    numbers = {"nan"} if any(d.is_floating_point for t in signature.tensors for d in t.dtypes) else set()
    assert {"values", "repeat", "stale"} | numbers <= {c.probe for c in cases}
    assert ("gradient" in {c.probe for c in cases}) == (OPS[op].gradient != REFUSED)
    assert ("out" in {c.probe for c in cases}) == signature.takes_out
    assert any(0 in shape for c in cases for shape in c.shapes.values())


def test_capture_is_among_the_cases_of_a_gpu() -> None:
    assert {c.probe for c in cases_of("rms_norm", "small", gpu=True)} - {
        c.probe for c in cases_of("rms_norm", "small")
    } == {"capture"}


def test_wider_operands_are_among_the_dtypes() -> None:
    found = [tuple(d.values()) for d in dtype_combinations(opmux.rms_norm.op.signature)]
    assert (torch.bfloat16, torch.float32) in found
    assert (torch.float32, torch.bfloat16) not in found
    residuals = list(dtype_combinations(opmux.add_rms_norm.op.signature))
    assert {"x": torch.bfloat16, "residual": torch.float32, "weight": torch.bfloat16} in residuals
    assert {"x": torch.bfloat16, "residual": torch.float32, "weight": torch.float32} in residuals


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "small"])
def test_every_profile_has_valid_cases(name: str) -> None:
    for op in ("rms_norm", "linear", "attention", "paged_attention", "write_kv_cache", "quantize"):
        cases = cases_of(op, name)
        assert cases, op
        assert all(is_valid(case) for case in cases)


def test_the_interpreter_profile_is_tiny() -> None:
    for op in ALL:
        for case in cases_of(op, "interpreter"):
            for shape in case.shapes.values():
                assert torch.Size(shape).numel() <= 2**17, case.id


def test_the_large_profile_passes_two_to_the_31() -> None:
    for op in ALL:
        for case in cases_of(op, "large"):
            assert max(torch.Size(shape).numel() for shape in case.shapes.values()) > 2**31, case.id


def test_model_shapes_keep_their_proportions() -> None:
    for model in MODELS.values():
        assert model.heads % model.kv_heads == 0
        small = model.scaled(32)
        assert small.heads // small.kv_heads == model.heads // model.kv_heads
        assert small.hidden % 8 == small.intermediate % 8 == small.head_dim % 8 == 0
        assert model.scaled(1) is model


@pytest.mark.parametrize(
    ("op", "sizes"),
    [("linear", {"n": 50257, "k": 1024}), ("fused_linear_cross_entropy", {"vocab": 50257, "hidden": 1024})],
)
def test_logits_whose_rows_are_not_aligned_are_among_the_shapes_of_models(op: str, sizes: dict[str, int]) -> None:
    found = [case.dims for case in cases_of(op, "model") if case.dims["tokens"] == (32,)]
    assert any(sizes.items() <= dims.items() for dims in found)
    assert not any(sizes.items() <= case.dims.items() for case in cases_of(op, "default"))


def test_the_cases_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import decimal, json, zipfile\n"  # other modules loaded: what hypothesis draws must not depend on them
        "from opmux.testing import cases_of\n"
        "print('\\n'.join(c.id for op in ('attention', 'quantize') for c in cases_of(op, 'small')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.split() == [c.id for op in ("attention", "quantize") for c in cases_of(op, "small")]
    assert list(tmp_path.iterdir()) == []  # hypothesis leaves no folder behind


def test_odd_sizes_are_drawn_within_the_limit() -> None:
    signature, profile = opmux.linear.op.signature, PROFILES["default"]
    found = draw_odd(signature, profile, {"way": ("a", "b", "c")}, lambda dims, ways: True)
    assert len(found) == profile.odd
    assert max(max(d["n"], d["k"]) for d, _ in found) <= profile.odd_limit
    assert {w["way"] for _, w in found} == {"a", "b", "c"}


def test_one_of_reaches_everything() -> None:
    from hypothesis import find, settings

    alone = settings(database=None)
    for wanted in range(7):
        assert find(one_of(range(7)), lambda drawn, wanted=wanted: drawn == wanted, settings=alone) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bf16,tokens=4", "it does not say hidden"),
        ("nothing,tokens=4,hidden=8", "module 'torch' has no attribute 'nothing'"),
        ("bf16,tokens=4,hidden=eight", "invalid literal"),
        ("bf16,tokens=4,hidden=8,depth=3", ""),
        ("bf16,tokens=4,hidden=8,eps=small", "could not convert"),
    ],
)
def test_what_is_no_id_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_case("rms_norm", text)
    lines = str(caught.value)
    assert lines.startswith(f"rms_norm: `case` expected the id of a conformance case, got {text!r} (")
    assert says in lines
    assert lines.endswith("; take it from a report, or from opmux.testing.cases_of")


def test_unknown_op_and_profile() -> None:
    with pytest.raises(InvalidArgument) as caught:
        cases_of("rms_nrom", "small")
    assert str(caught.value) == (
        "conformance: `ops` expected names of ops, got 'rms_nrom'; see `opmux ops` for the ops"
    )
    with pytest.raises(InvalidArgument) as caught:
        cases_of("rms_norm", "tiny")
    assert str(caught.value) == (
        "conformance: `profile` expected one of small, default, model, interpreter, interpreter-some, "
        "emulator, emulator-some, large, got 'tiny'; "
        "`small` is the one for CPUs and quick runs"
    )


def test_alternatives_name_options_that_exist() -> None:
    names = {o.name for op in OPS.values() for o in op.signature.options} | {"out_dtype"}
    assert set(ALTERNATIVES) <= names


@pytest.mark.parametrize("op", ["quantize", "attention_varlen"])
def test_the_calls_are_complete(op: str) -> None:
    """Options without a default are there once the inputs are made."""
    from opmux.testing.inputs import make_arguments

    for case in cases_of(op, "small")[:20]:
        made = make_arguments(case, torch.device("cpu"))
        check_call(OPS[op].signature, made.tensors, made.options)
