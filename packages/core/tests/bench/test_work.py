"""How much a call has to do, and how far two results are apart."""

import pytest
import torch

from opmux.bench.data import Arguments
from opmux.bench.results import Ceilings
from opmux.bench.work import difference, flops_of, least_time, measure_ceilings, moved_of
from opmux.callpath.op import OPS


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


def test_flops_are_the_ops_own_expression_with_leading_dims_multiplied() -> None:
    arguments = Arguments((zeros(2, 3, 8), zeros(4, 8), None))
    assert flops_of(OPS["linear"], arguments) == 2 * (2 * 3) * 4 * 8


def test_a_cases_share_or_own_count_comes_first() -> None:
    tensors = (zeros(6, 8), zeros(4, 8), None)
    assert flops_of(OPS["linear"], Arguments(tensors, share=0.5)) == 6 * 4 * 8
    assert flops_of(OPS["linear"], Arguments(tensors, flops=7.0)) == 7


def test_an_op_without_an_expression_has_no_count() -> None:
    assert flops_of(OPS["silu_mul"], Arguments((zeros(2, 4), zeros(2, 4)))) is None


@pytest.mark.parametrize(
    ("op", "arguments", "moved"),
    [
        ("silu_mul", Arguments((zeros(2, 4), zeros(2, 4))), 3 * 8 * 4),
        ("rms_norm", Arguments((zeros(2, 4, dtype=torch.bfloat16), zeros(4))), 2 * 8 * 2 + 4 * 4),
        ("add_rms_norm_", Arguments((zeros(2, 4), zeros(2, 4), zeros(4))), 4 * 8 * 4 + 4 * 4),
        ("quantize", Arguments((zeros(2, 128),), {"dtype": torch.int8}), 2 * 128 * 5 + 2 * 4),
        (
            "linear_backward",
            Arguments((zeros(2, 4), zeros(2, 8), zeros(4, 8)), {"output_mask": (True, False, False)}),
            (8 + 16 + 32 + 16) * 4,
        ),
        ("silu_mul", Arguments((zeros(2, 4), zeros(2, 4)), moved=5), 5),
    ],
)
def test_bytes_are_inputs_and_outputs_once(op: str, arguments: Arguments, moved: int) -> None:
    assert moved_of(OPS[op], arguments) == moved


@pytest.mark.parametrize(
    ("flops", "moved", "least"),
    [
        (None, 1000, (1.0, "memory")),
        (1e6, 1000, (1.0, "memory")),
        (4e6, 1000, (4.0, "compute")),
    ],
)
def test_the_least_time_is_the_larger_of_two(flops: float | None, moved: int, least: tuple[float, str]) -> None:
    time, bound = least_time(flops, moved, Ceilings(copy_gbps=1.0, matmul_tflops=1.0))
    assert (time, bound) == (pytest.approx(least[0]), least[1])


def test_ceilings_are_measured() -> None:
    ceilings = measure_ceilings(torch.device("cpu"), torch.float32)
    assert ceilings.copy_gbps > 0
    assert ceilings.matmul_tflops > 0


@pytest.mark.parametrize(
    ("ours", "reference", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [1.0, 2.0], 0.5),
        ([0.0, 0.5], [0.0, 0.0], float("inf")),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_a_fraction_of_the_largest_magnitude(ours, reference, apart: float) -> None:
    assert difference([torch.tensor(ours)], [torch.tensor(reference)]) == apart


def test_the_worst_of_several_results_counts() -> None:
    good, bad = torch.ones(3), torch.full((3,), 1.5)
    assert difference([good, bad], [good, good]) == 0.5


def test_another_number_of_results_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        difference([torch.ones(1)], [torch.ones(1), torch.ones(1)])
