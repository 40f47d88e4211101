"""Constraints: what they let pass, the reason they give, and that equal keys mean equal verdicts."""

import pytest
import torch
from backends import backends, implementation
from hypothesis import given, settings
from hypothesis import strategies as st

import opmux
from opmux import plugin as p
from opmux.declared.constraints import is_failure
from opmux.errors import UnsupportedCall
from opmux.plugins import loading


def target(x, weight, *, eps, weight_offset):
    return torch.empty_like(x)


def verdict(op, tensors, *when, target=target, **options):
    """(status, reason) of an implementation with these constraints."""
    with backends(planted=implementation(target, op=op.op.name, when=when)):
        plan = opmux.explain(op, *tensors, **options)
    return next((c.status, c.reason) for c in plan.candidates if c.name == "planted")


def odd_bucket(features):
    bucket = features["bucket(tokens)"]
    return f"bucket {bucket} is odd" if bucket % 2 else None


X, W = torch.randn(6, 64), torch.randn(64)
Q = torch.randn(2, 5, 4, 8)
V = torch.randn(2, 5, 4, 16)


def product_of(dtype):
    """The tensors of a product of codes."""
    x = X.to(dtype)
    return torch.zeros(6, 6), x, x, torch.ones(1, 1), torch.ones(1, 1)


STRIDED = torch.randn(64, 6).T

CASES = [
    (p.Dtype("x", "bfloat16", "float16"), opmux.rms_norm, (X, W), "x is float32, takes bfloat16, float16"),
    (
        p.Dtype("w", "float8_e4m3fn", "int8"),
        opmux.scaled_linear_accumulate,
        product_of(torch.float8_e4m3fnuz),
        "w is float8_e4m3fnuz, takes float8_e4m3fn, int8: convert it by opmux.convert_fp8",
    ),
    (
        p.Dtype("w", "float8_e4m3fn"),
        opmux.scaled_linear_accumulate,
        product_of(torch.float8_e5m2fnuz),
        "w is float8_e5m2fnuz, takes float8_e4m3fn",
    ),
    (p.SameDtype("x", "weight"), opmux.rms_norm, (X.double(), W), "dtypes differ: x float64, weight float32"),
    (p.MultipleOf("hidden", 48), opmux.rms_norm, (X, W), "hidden = 64 is not a multiple of 48"),
    (p.AtMost("hidden", 32), opmux.rms_norm, (X, W), "hidden = 64 is more than 32"),
    (p.AtMost("tokens", 5), opmux.rms_norm, (X, W), "tokens = 6 is more than 5"),
    (p.AtLeast("tokens", 7), opmux.rms_norm, (X, W), "tokens = 6 is less than 7"),
    (p.OneOf("head_dim", 64, 128), opmux.attention, (Q, Q, Q), "head_dim = 8 is not 64 or 128"),
    (p.OneOf("window", (3, 0)), opmux.attention, (Q, Q, Q), "window = (-1, -1) is not (3, 0)"),
    (p.Equal("head_dim", "value_dim"), opmux.attention, (Q, Q, V), "head_dim = 8 is not equal to value_dim = 16"),
    (p.Equal("tokens", "hidden"), opmux.rms_norm, (X, W), "tokens = 6 is not equal to hidden = 64"),
    (p.AtMost("tokens", "hidden"), opmux.rms_norm, (torch.randn(65, 64), W), "tokens = 65 is more than hidden = 64"),
    (p.AtLeast("tokens", "hidden"), opmux.rms_norm, (X, W), "tokens = 6 is less than hidden = 64"),
    (
        p.AnyOf(p.OneOf("causal", True), p.Equal("head_dim", "value_dim")),
        opmux.attention,
        (Q, Q, V),
        "causal = False is not True, and head_dim = 8 is not equal to value_dim = 16",
    ),
    (p.Contiguous("x"), opmux.rms_norm, (STRIDED, W), "x is not contiguous: strides [1, 6]"),
    (p.UnitStride("x"), opmux.rms_norm, (STRIDED, W), "the last stride of x is not 1: strides [1, 6]"),
    (p.Aligned("x"), opmux.rms_norm, (torch.randn(65)[1:].view(1, 64), W), "x is not aligned to 16 bytes"),
    (p.Present("bias"), opmux.layer_norm, (X, W), "bias is absent"),
    (p.Absent("bias"), opmux.layer_norm, (X, W, W), "bias is not supported"),
    (p.MaxNumel("x", 300), opmux.rms_norm, (X, W), "x spans more than 300 elements"),
    (p.MaxNumel("x", 8), opmux.rms_norm, (torch.randn(9, 2)[:, :1].expand(9, 64), W), "x spans more than 8 elements"),
    (
        p.ScaleBlock("x", (1, 128), scale="weight"),
        opmux.rms_norm,
        (X, W),
        "weight is [64], takes one scale per [1, 128] block of x",
    ),
    (
        p.Predicate(odd_bucket, (p.Bucket("tokens"),)),
        opmux.rms_norm,
        (X, W),
        "bucket 3 is odd",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "op", "tensors", "reason"), CASES, ids=[type(c[0]).__name__ for c in CASES])
def test_a_broken_constraint_says_why(constraint, op, tensors, reason):
    assert verdict(op, tensors, constraint) == ("rejected", reason)


HOLDING = [
    (p.Dtype("x", "float32"), opmux.rms_norm, (X, W)),
    (p.SameDtype("x", "weight"), opmux.rms_norm, (X, W)),
    (p.MultipleOf("hidden", 32), opmux.rms_norm, (X, W)),
    (p.AtMost("tokens", 6), opmux.rms_norm, (X, W)),
    (p.OneOf("causal", False), opmux.attention, (Q, Q, Q)),
    (p.Equal("head_dim", "value_dim"), opmux.attention, (Q, Q, Q)),
    (p.AtMost("tokens", "hidden"), opmux.rms_norm, (X, W)),
    (p.AnyOf(p.OneOf("causal", True), p.Equal("head_dim", "value_dim")), opmux.attention, (Q, Q, Q)),
    (p.AnyOf(p.OneOf("causal", False), p.Equal("head_dim", "value_dim")), opmux.attention, (Q, Q, V)),
    (p.Equal("tokens", "hidden"), opmux.rms_norm, (torch.randn(4, 16, 64), W)),
    (p.Contiguous("x", "weight"), opmux.rms_norm, (X, W)),
    (p.Contiguous("bias"), opmux.layer_norm, (X, W)),
    (p.UnitStride("x"), opmux.rms_norm, (X[:, :1], W[:1])),
    (p.Aligned("x", 4), opmux.rms_norm, (torch.randn(65)[1:].view(1, 64), W)),
    (p.Present("bias"), opmux.layer_norm, (X, W, W)),
    (p.Absent("bias"), opmux.layer_norm, (X, W)),
]


@pytest.mark.parametrize(("constraint", "op", "tensors"), HOLDING, ids=[type(c[0]).__name__ for c in HOLDING])
def test_a_constraint_that_holds_lets_pass(constraint, op, tensors):
    assert verdict(op, tensors, constraint)[0] == "chosen"


def broken(features):
    raise ZeroDivisionError("oh")


def takes_all(features):
    return True


def takes_none(features):
    return False


EXPECTED = "expected None where the call is taken, else the reason as a str"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (broken, "predicate broken raised ZeroDivisionError: oh"),
        (takes_all, f"predicate takes_all returned True, {EXPECTED}"),
        (takes_none, f"predicate takes_none returned False, {EXPECTED}"),
    ],
)
def test_a_predicate_that_fails_is_a_refusal(function, told):
    when = p.Predicate(function, (p.Exact("hidden"),))
    assert verdict(opmux.rms_norm, (X, W), when) == ("rejected", told)
    with backends(planted=implementation(target, when=(when,))):
        assert torch.equal(opmux.rms_norm(X, W), opmux.rms_norm.reference(X, W))
        assert told in str(opmux.explain(opmux.rms_norm, X, W))
        with pytest.raises(UnsupportedCall) as caught:
            opmux.rms_norm(X, W, backend="planted")
    assert f"planted    (opmux-planted 1.2.3)  {told}" in str(caught.value)


def test_a_predicate_that_fails_inside_any_of_is_a_failure_of_it():
    inner = p.Predicate(broken, (p.Exact("hidden"),))
    when = p.AnyOf(p.OneOf("hidden", 3), inner)
    told = "hidden = 64 is not 3, and predicate broken raised ZeroDivisionError: oh"
    assert verdict(opmux.rms_norm, (X, W), when) == ("rejected", told)
    assert is_failure(when, told)
    assert not is_failure(when, "hidden = 64 is not 3, and hidden = 64 is odd")


def test_a_constraint_of_a_plugins_own_that_fails_is_a_refusal():
    class Odd(p.Constraint):
        def check(self, call):
            return True

    assert verdict(opmux.rms_norm, (X, W), Odd()) == ("rejected", f"Odd returned True, {EXPECTED}")


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        (p.AtMost("hidden", "hidden"), "AtMost('hidden', 'hidden') has no meaning"),
        (p.AtMost("hidden", "n"), "rms_norm has no dim or option `n`; it has tokens, hidden, eps"),
        (p.MultipleOf("hidden", "tokens"), "MultipleOf('hidden', 'tokens') has no meaning"),
        (p.AnyOf(p.AtMost("hidden", 4)), "AnyOf(AtMost(name='hidden', bound=4)) has no meaning: name two constraints"),
        (p.Equal("hidden", "hidden"), "Equal('hidden', 'hidden') always holds: name two dims or options"),
        (p.Equal("hidden", "value_dim"), "rms_norm has no dim or option `value_dim`; it has tokens, hidden, eps"),
    ],
)
def test_an_equality_without_meaning_is_refused_at_registration(constraint, told):
    with backends(planted=implementation(target, when=(constraint,))):
        (failed,) = [f for f in loading.failed_plugins() if f.name == "planted"]
    assert failed.reason.startswith(f"planted of rms_norm: {told}")


ALL = (
    p.MultipleOf("hidden", 8), p.AtMost("hidden", 40), p.AtMost("tokens", 9), p.Contiguous("x"), p.UnitStride("x"),
    p.Aligned("x"), p.MaxNumel("x", 200),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_calls_with_equal_keys_get_equal_verdicts(data):
    """A plan serves every call of its key, so no constraint may see more than the key holds."""

    def call():
        rows, hidden = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 50))
        x = torch.empty(rows + 1, hidden + 3)[data.draw(st.integers(0, 1)) :, data.draw(st.integers(0, 3)) :][
            :rows, :hidden
        ]
        if data.draw(st.booleans()):
            x = torch.empty(hidden, rows).T
        return x, torch.empty(hidden)

    a, b = call(), call()
    with backends(planted=[implementation(target, name=f"c{i}", when=(c,)) for i, c in enumerate(ALL)]):
        state = opmux.rms_norm.op.state
        keys = [state.key_of(*tensors) for tensors in (a, b)]
        plans = [opmux.explain(opmux.rms_norm, *tensors) for tensors in (a, b)]
    verdicts = [{c.name: c.status in ("chosen", "accepted") for c in plan.candidates} for plan in plans]
    assert keys[0] != keys[1] or verdicts[0] == verdicts[1]


@pytest.mark.parametrize(
    ("feature", "label", "value"),
    [
        (p.Exact("hidden"), "hidden", 64),
        (p.Exact("eps"), "eps", 1e-6),
        (p.Bucket("hidden"), "bucket(hidden)", 6),
        (p.Bucket("tokens"), "bucket(tokens)", 3),
        (p.Bucket("tokens", per_octave=8), "bucket(tokens, 8)", 6),
        (p.Bucket("hidden", per_octave=2), "bucket(hidden, 2)", 64),
        (p.StrideOrder("x"), "stride_order(x)", (0, 1)),
        (p.Alignment("x"), "alignment(x)", 16),
    ],
)
def test_features_reach_the_config_function(feature, label, value):
    seen = {}

    def config(arch, features):
        seen.update(features, arch=arch.name)
        return {"block": 8}

    def with_config(x, weight, *, eps, weight_offset, config):
        assert config == {"block": 8}
        return torch.empty_like(x)

    with backends(planted=implementation(with_config, features=(feature,), config=config)):
        opmux.rms_norm(X, W)
    assert seen == {label: value, "arch": "cpu"}


@pytest.mark.parametrize("per_octave", [2, 4, 8])
def test_steps_of_an_octave_cover_all_sizes_and_end_where_their_value_says(per_octave):
    source = p.Bucket("tokens", per_octave=per_octave).feature(opmux.rms_norm.op.signature).source
    steps = {}
    for size in range(4097):
        value = eval(source, {"tokens": size, "_prod": lambda shape: shape})
        steps.setdefault(value, []).append(size)
    for value, sizes in steps.items():
        assert max(sizes) == value
        assert sizes == list(range(min(sizes), value + 1))
    for octave in (256, 1024, 2048):
        assert sum(octave < value <= 2 * octave for value in steps) == per_octave


@pytest.mark.parametrize("per_octave", [0, 3, -4, 2.0])
def test_steps_that_are_no_power_of_two_are_refused(per_octave):
    with backends(planted=implementation(target, features=(p.Bucket("tokens", per_octave=per_octave),))):
        reasons = [f.reason for f in loading.failed_plugins()]
    said = f"Bucket('tokens', per_octave={per_octave!r}): per_octave is a power of two, as 4"
    assert any(said in reason for reason in reasons)
