"""Cases fitted to what a backend declares."""

import pytest
import torch
from backends import backends

import opmux
from opmux.callpath.op import OPS
from opmux.plugin import AnyOf, AtLeast, AtMost, Contiguous, Dtype, Equal, Implementation, MultipleOf, OneOf, Present
from opmux.testing import cases_of
from opmux.testing.fitted import alternatives, cases_for, edge_sizes
from opmux.testing.profiles import PROFILES

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("constraints", "sizes"),
    [
        ([MultipleOf("hidden", 4)], [4, 12, 132]),
        ([MultipleOf("hidden", 64)], [64, 192]),
        ([AtLeast("hidden", 32), MultipleOf("hidden", 16)], [32, 48, 144]),
        ([AtMost("hidden", 100), MultipleOf("hidden", 8)], [8, 24, 96]),
        ([OneOf("hidden", 64, 128)], [64, 128]),
    ],
)
def test_sizes_stand_at_the_edges_of_constraints(constraints: list, sizes: list[int]) -> None:
    assert edge_sizes(constraints, PROFILES["small"]) == sizes


def test_a_backend_without_constraints_has_the_cases_of_its_op() -> None:
    with backends(kernel=Implementation(op="rms_norm", target=opmux.rms_norm.reference)):
        assert cases_for("kernel", "rms_norm", "small", CPU) == cases_of("rms_norm", "small")


def test_a_bound_may_be_another_dim() -> None:
    narrow = Implementation(op="linear", target=opmux.linear.reference, when=(AtMost("n", "k"), Dtype("x", "float32")))
    with backends(kernel=narrow):
        added = cases_for("kernel", "linear", "small", CPU)[len(cases_of("linear", "small")) :]
    assert added
    assert all(case.dims["n"] <= case.dims["k"] for case in added)


SQUARE = AnyOf(OneOf("causal", False), Equal("seq_q", "seq_k"))


def test_a_case_is_fitted_to_each_choice_of_any_of() -> None:
    square = Implementation(op="attention", target=opmux.attention.reference, when=(SQUARE,))
    cases = cases_of("attention", "small")
    oblong = [c for c in cases if c.options.get("causal") and c.dims["seq_q"] != c.dims["seq_k"] and c.dims["seq_q"]]
    assert oblong
    with backends(kernel=square):
        added = cases_for("kernel", "attention", "small", CPU)[len(cases) :]
    assert any(c.options["causal"] and c.dims["seq_q"] == c.dims["seq_k"] for c in added)
    assert any(not c.options["causal"] and c.dims["seq_q"] != c.dims["seq_k"] for c in added)
    assert all(not c.options["causal"] or c.dims["seq_q"] == c.dims["seq_k"] for c in added)


def test_sizes_stand_at_the_edges_of_each_choice() -> None:
    either = Implementation(
        op="rms_norm", target=opmux.rms_norm.reference, when=(AnyOf(MultipleOf("hidden", 48), OneOf("hidden", 20)),)
    )
    with backends(kernel=either):
        sizes = {case.dims["hidden"] for case in cases_for("kernel", "rms_norm", "small", CPU)}
    assert {48, 144, 20} <= sizes


def test_choices_to_which_no_case_can_be_fitted_are_one() -> None:
    """Layouts are drawn, not fitted: choices among them would double the cases for nothing."""
    layouts = AnyOf(Contiguous("x"), Contiguous("w"))
    nested = AnyOf(Present("bias"), AnyOf(OneOf("n", 8), OneOf("n", 16)))
    linear = Implementation(op="linear", target=opmux.linear.reference, when=(layouts, nested, Dtype("x", "float32")))
    assert [repr(a.when) for a in alternatives(linear)] == [
        "(Present(argument='bias'), Dtype('x', 'float32'))",
        "(OneOf('n', 8), Dtype('x', 'float32'))",
        "(OneOf('n', 16), Dtype('x', 'float32'))",
    ]


def test_default_contains_small() -> None:
    for op in ("rms_norm", "attention", "quantize"):
        assert {c.id for c in cases_of(op, "small")} <= {c.id for c in cases_of(op, "default")}


def test_a_profile_may_run_a_few_claimed_cases_only() -> None:
    """Evenly chosen: not the first ones, which differ in dtypes alone."""
    narrow = Implementation(op="linear", target=opmux.linear.reference, when=(Dtype("x", "float32"),))
    with backends(kernel=narrow):
        every = cases_for("kernel", "linear", "emulator", CPU)
        some = cases_for("kernel", "linear", "emulator-some", CPU)
    claimed = [case for case in every if case.dtypes["x"] == torch.float32]
    assert len(some) == 4
    assert some == tuple(claimed[len(claimed) * place // 4] for place in range(4))


@pytest.mark.parametrize("op", sorted(OPS))
def test_a_few_cases_of_each_op_are_chosen_without_contents(op: str) -> None:
    """Integers that follow from contents are made up: the op's validation must take them."""
    reference = Implementation(op=op, target=getattr(opmux, op).reference)
    with backends(kernel=reference):
        assert 0 < len(cases_for("kernel", op, "emulator-some", CPU)) <= 4


def test_no_case_plants_a_nan_into_integers() -> None:
    """A backend that takes int8 alone: cases about NaN are fitted to it only where floats are meant."""
    codes = Implementation(op="scaled_linear", target=opmux.scaled_linear.reference, when=(Dtype("x", "int8"),))
    with backends(kernel=codes):
        cases = cases_for("kernel", "scaled_linear", "small", CPU)
    planted = [case for case in cases if case.probe in ("nan", "inf", "-inf") and case.dtypes["x"] == torch.int8]
    assert {case.data for case in planted} >= {"x_scale", "bias"}
    assert not {case.data for case in planted} & {"x", "w"}
