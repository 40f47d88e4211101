"""Cases fitted to what a backend declares."""

import pytest
import torch
from backends import backends

import opmux
from opmux.plugin import AtLeast, AtMost, Dtype, Implementation, MultipleOf, OneOf
from opmux.testing import cases_of
from opmux.testing.fitted import cases_for, edge_sizes
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


def test_default_contains_small() -> None:
    for op in ("rms_norm", "attention", "quantize"):
        assert {c.id for c in cases_of(op, "small")} <= {c.id for c in cases_of(op, "default")}
