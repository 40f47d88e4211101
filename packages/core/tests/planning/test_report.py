"""What is said of a call that no backend takes: every rejection with its reason, and what to do."""

import dataclasses

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X, ones

import opmux
from opmux.arch import parse_arch
from opmux.callpath.op import OPS
from opmux.errors import UnsupportedCall
from opmux.planning import resolver
from opmux.planning.plan import circumstances, resolve
from opmux.planning.report import refusal_text
from opmux.plugin import AtMost, Dtype, MultipleOf
from opmux.running import attempt as attempts
from opmux.running.attempt import attempt_of


@pytest.fixture
def pretend_gpu(monkeypatch):
    """CPU tensors that opmux takes for ones on an sm_90."""
    monkeypatch.setattr(attempts, "arch_of", lambda device: parse_arch("sm_90"))
    OPS["rms_norm"].drop_plans()
    yield
    OPS["rms_norm"].drop_plans()


TOLD = (
    "rms_norm: no backend accepts this call on sm_90{}\n"
    "  call:      x float32[4, 8], weight float32[8]\n"
    "  rejected:  a          (opmux-a 1.2.3)  hidden = 8 is not a multiple of 128\n"
    "             b          (opmux-b 1.2.3)  disabled by OPMUX_DISABLE\n"
    "             reference  (opmux 0.1.0)    {}\n"
    '  try:       pad hidden to 128, or pass backend="reference"'
)


@pytest.mark.usefixtures("pretend_gpu")
def test_a_gpu_call_that_finds_only_the_reference_says_so_once(messages, monkeypatch):
    monkeypatch.setenv("OPMUX_DISABLE", "b")
    opmux.policy.reset()
    made = {"a": implementation(ones, when=(MultipleOf("hidden", 128),)), "b": implementation(ones)}
    with backends(**made):
        for _ in range(3):
            assert torch.equal(opmux.rms_norm(X, W), WANTED)
        told = [r.getMessage() for r in messages.records if r.module != "loading"]  # told once in a process
        assert told == [TOLD.format("; the reference runs", "the implementation of last resort")]
        opmux.policy.strict(True)
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == TOLD.format(", and the policy is strict", "not taken under strict unless asked for")
        assert torch.equal(opmux.rms_norm(X, W, backend="reference"), WANTED)
    monkeypatch.delenv("OPMUX_DISABLE")


def told_of(op, *tensors):
    """The lines of the refusal of a call on an sm_90, without the reference."""
    attempt = attempt_of(op.op, op.op.state, tensors, op.op.bind_arguments(tensors, {})[1], arch=parse_arch("sm_90"))
    with opmux.policy.override(disable=["reference"]):
        return refusal_text(op.op, attempt.call, resolve(attempt), " at all").splitlines()


def test_the_last_resort_stands_last_and_columns_are_aligned():
    with backends(zz=implementation(ones, archs=("gfx942",)), long_name=implementation(ones, archs=("cpu",))):
        assert told_of(opmux.rms_norm, X, W) == [
            "rms_norm: no backend accepts this call on sm_90 at all",
            "  call:      x float32[4, 8], weight float32[8]",
            "  rejected:  long_name  (opmux-long_name 1.2.3)  archs: cpu, this is sm_90",
            "             zz         (opmux-zz 1.2.3)         archs: gfx942, this is sm_90",
            "             reference  (opmux 0.1.0)            disabled by policy.override",
            '  try:       change the arguments that the reasons name, or pass backend="reference"',
        ]


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        ({}, 'install a backend for sm_90 (see `opmux backends`), or pass backend="reference"'),
        ({"when": (MultipleOf("tokens", 6),)}, 'pad tokens to 6, or pass backend="reference"'),
        ({"when": (MultipleOf("hidden", 3),)}, 'pad hidden to 9, or pass backend="reference"'),
        ({"when": (AtMost("hidden", 4),)}, 'change the arguments that the reasons name, or pass backend="reference"'),
        (
            {"when": (MultipleOf("hidden", 3),), "archs": ("cpu",)},
            'change the arguments that the reasons name, or pass backend="reference"',
        ),
    ],
    ids=["nothing", "rows", "row", "too long", "padding would not help"],
)
def test_the_remedy_is_what_would_help(made, remedy):
    with backends(**({"a": implementation(ones, **made)} if made else {})):
        assert told_of(opmux.rms_norm, X, W)[-1] == f"  try:       {remedy}"


FNUZ = torch.float8_e4m3fnuz
CODES, ROWS = torch.ones(8, 6).to(FNUZ), torch.ones(8, 1)
OCP = Dtype("q", "float8_e4m3fn")
CONVERT = "convert the 8-bit floats, and their scales, to the flavour of sm_90 with opmux.convert_fp8"
GENERIC = "change the arguments that the reasons name"


@pytest.mark.parametrize(
    ("records", "remedy"),
    [
        ({"a": (OCP,)}, CONVERT),
        ({"a": (MultipleOf("k", 4),), "b": (OCP,)}, CONVERT),
        ({"a": (OCP, MultipleOf("k", 4), MultipleOf("m", 16))}, f"{CONVERT}, and pad k to 8 and m to 16"),
        ({"a": (OCP, MultipleOf("k", 4)), "b": (MultipleOf("k", 4), MultipleOf("k", 5))}, "pad k to 20"),
        ({"a": (OCP, AtMost("k", 4))}, GENERIC),
        ({"a": (MultipleOf("k", 4), AtMost("m", 4))}, GENERIC),
        ({"a": (Dtype("q", "int8"),)}, GENERIC),
    ],
    ids=["flavour", "rather than padding", "both", "padding alone", "no use", "padding of no use", "another format"],
)
def test_the_flavour_of_8_bit_floats_comes_before_padding(records, remedy):
    options = {"out_dtype": torch.float32}
    made = {name: implementation(ones, op="dequantize", when=when) for name, when in records.items()}
    with backends(**made):
        assert remedy_of(opmux.dequantize, (CODES, ROWS), options) == f'{remedy}, or pass backend="reference"'


def test_a_backend_that_was_not_asked_for_gives_no_remedy():
    with backends(
        a=implementation(ones, when=(MultipleOf("hidden", 3),)), b=implementation(ones, when=(AtMost("hidden", 4),))
    ):
        assert remedy_of(opmux.rms_norm, (X, W), {}, "b").startswith(GENERIC)
        assert remedy_of(opmux.rms_norm, (X, W), {}, "a").startswith("pad hidden to 9")


def remedy_of(op, tensors, options, backend=None):
    """The remedy in the refusal of a call on an sm_90, without the reference."""
    given = op.op.bind_arguments(tensors, options)[1]
    attempt = attempt_of(op.op, op.op.state, tensors, given, arch=parse_arch("sm_90"))
    with opmux.policy.override(disable=["reference"]):
        around = dataclasses.replace(circumstances(attempt), forced=backend)
        found = resolver.resolve(attempt.call, op.op.implementations, around)
        last = refusal_text(op.op, attempt.call, found, " at all").splitlines()[-1]
    return last.removeprefix("  try:       ")
