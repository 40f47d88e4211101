"""The references of grouped products, against a product for each group in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.errors import InvalidArgument


def offsets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def operands(m: int = 11, groups: int = 4, n: int = 5, k: int = 7, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*sizes, generator=generator).to(dtype) for sizes in ((m, k), (groups, n, k))]


def one_by_one(x: Tensor, w: Tensor, groups: list[int]) -> Tensor:
    """The group of each row decides about its weight."""
    return torch.einsum("tk,tnk->tn", x.double(), w.double()[groups])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_each_row_is_multiplied_by_the_weight_of_its_group(dtype: torch.dtype) -> None:
    x, w = operands(dtype=dtype)
    out = opmux.grouped_linear(x, w, offsets(0, 3, 3, 4, 11))
    expected = one_by_one(x, w, [0] * 3 + [2] + [3] * 7)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.to(dtype))


def test_padding_and_rows_past_the_groups_are_not_read() -> None:
    x, w = operands()
    clean = opmux.grouped_linear(x, w, offsets(0, 4, 4, 8, 9), offsets(3, 0, 4, 1))
    x[3], x[9:] = float("nan"), float("nan")
    out = opmux.grouped_linear(x, w, offsets(0, 4, 4, 8, 9), offsets(3, 0, 4, 1))
    rows = [0, 1, 2, 4, 5, 6, 7, 8]
    assert torch.equal(out[rows], clean[rows])
    torch.testing.assert_close(
        out[rows].double(), one_by_one(x[rows], w, [0] * 3 + [2] * 4 + [3]), rtol=1e-5, atol=1e-5
    )


def test_padding_is_left_unwritten() -> None:
    x, w = operands()
    torch.utils.deterministic.fill_uninitialized_memory = True
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(True)
        try:
            out = opmux.grouped_linear.reference(x, w, offsets(0, 4, 4, 8, 9), offsets(3, 0, 4, 1))
        finally:
            torch.use_deterministic_algorithms(False)
    assert out.isnan().all(1).tolist() == [t in (3, 9, 10) for t in range(11)]


@pytest.mark.parametrize(("m", "groups", "of"), [(0, 3, (0, 0, 0, 0)), (4, 2, (0, 0, 0)), (4, 0, (0,)), (1, 1, (0, 1))])
def test_no_rows_no_groups_and_one_row(m: int, groups: int, of: tuple[int, ...]) -> None:
    x, w = operands(m, groups)
    out = opmux.grouped_linear(x, w, offsets(*of))
    assert out.shape == (m, 5)
    torch.testing.assert_close(out[: of[-1]].double(), one_by_one(x[: of[-1]], w, [0] * of[-1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [None, (2, 0, 4, 1)])
def test_gradients(sizes: tuple[int, ...] | None) -> None:
    x, w = (t.requires_grad_() for t in operands(dtype=torch.float64))
    given = (offsets(0, 4, 4, 8, 9), None if sizes is None else offsets(*sizes))
    rows = [t for g, s in enumerate((0, 4, 4, 8)) for t in range(s, s + (sizes or (4, 0, 4, 1))[g])]

    def of_groups(x: Tensor, w: Tensor) -> Tensor:
        return opmux.grouped_linear(x, w, *given)[rows]

    assert torch.autograd.gradcheck(of_groups, (x, w))
    of_groups(x, w).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    others = [t for t in range(11) if t not in rows]
    assert not x.grad[others].any()
    assert not w.grad[1].any()


def test_a_gradient_that_nobody_wants_is_not_computed() -> None:
    x, w = operands()
    grad = torch.ones(11, 5)
    grad_x, grad_w = opmux.grouped_linear_backward(grad, x, w, offsets(0, 3, 3, 4, 11), output_mask=(True, False))
    assert (grad_x.shape, grad_w.shape) == ((11, 7), (0,))


def test_gradients_of_weights_are_added_up_in_float32() -> None:
    x, _ = operands(dtype=torch.bfloat16)
    dy = torch.randn(11, 5, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    out = torch.ones(4, 5, 7)
    opmux.grouped_weight_grad(out, dy, x, offsets(0, 3, 3, 4, 11))
    bounds = [(0, 3), (3, 3), (3, 4), (4, 11)]
    expected = torch.stack([1 + dy[a:b].double().T @ x[a:b].double() for a, b in bounds])
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(out[1], torch.ones(5, 7))


def test_rows_that_do_not_count_are_not_read() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*sizes, generator=generator) for sizes in ((3, 4, 7), (3, 5, 7)))
    x[0, 2:], x[1] = float("nan"), float("nan")
    counts = offsets(2, 0, 4)
    for expected_m in (0, 2, 100):
        out = opmux.masked_grouped_linear(x, w, counts, expected_m=expected_m)
        assert out.shape == (3, 4, 5)
        torch.testing.assert_close(out[0, :2], x[0, :2] @ w[0].T)
        torch.testing.assert_close(out[2], x[2] @ w[2].T)


REMEDY = "it is the running sum of the groups' rows, padding included, with a 0 in front"


@pytest.mark.parametrize(
    ("starts", "sizes", "message"),
    [
        ((1, 3, 3, 4, 11), None, f"`group_offsets` expected 0 at index 0, got 1; {REMEDY}"),
        ((0, 3, 2, 4, 11), None, f"`group_offsets` expected 3 or more at index 2, as at index 1, got 2; {REMEDY}"),
        (
            (0, 3, 3, 4, 12),
            None,
            f"`group_offsets` expected at most 11, the number of rows, at its end, got 12; {REMEDY}",
        ),
        (
            (0, 3, 3, 4, 11),
            (3, 0, 2, 7),
            "`group_sizes` expected a number from 0 to 1 at index 2, the rows up to the next group, got 2; "
            "give `group_offsets` room for the rows of each group",
        ),
        (
            (0, 3, 3, 4, 11),
            (-1, 0, 1, 7),
            "`group_sizes` expected a number from 0 to 3 at index 0, the rows up to the next group, got -1; "
            "give `group_offsets` room for the rows of each group",
        ),
    ],
)
def test_bad_groups_are_named(starts: tuple[int, ...], sizes: tuple[int, ...] | None, message: str) -> None:
    x, w = operands()
    groups = (offsets(*starts), None if sizes is None else offsets(*sizes))
    grad = torch.ones(11, 5)
    calls: dict[str, Any] = {
        "grouped_linear": lambda: opmux.grouped_linear(x, w, *groups),
        "grouped_linear_backward": lambda: opmux.grouped_linear_backward(grad, x, w, *groups),
        "grouped_weight_grad": lambda: opmux.grouped_weight_grad(torch.zeros(4, 5, 7), grad, x, *groups),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgument) as raised:
            call()
        assert str(raised.value).splitlines()[0] == f"{name}: {message}"


@pytest.mark.parametrize("count", [-1, 5])
def test_bad_counts_are_named(count: int) -> None:
    with pytest.raises(InvalidArgument) as raised:
        opmux.masked_grouped_linear(torch.ones(3, 4, 7), torch.ones(3, 5, 7), offsets(2, count, 4), expected_m=2)
    assert str(raised.value).splitlines()[0] == (
        f"masked_grouped_linear: `masked_m` expected a number from 0 to max_m = 4 at index 1, got {count}; "
        "give `x` room for the rows of each group"
    )


def test_a_weight_too_few_is_refused() -> None:
    x, w = operands()
    with pytest.raises(InvalidArgument) as raised:
        opmux.grouped_linear(x, w[:3], offsets(0, 3, 3, 4, 11))
    assert str(raised.value).splitlines()[0].startswith("grouped_linear: `group_offsets` expected shape")


def test_a_product_of_counted_rows_has_no_gradient() -> None:
    x = torch.ones(3, 4, 7, requires_grad=True)
    with pytest.raises(opmux.errors.GradientRefused) as raised:
        opmux.masked_grouped_linear(x, torch.ones(3, 5, 7), offsets(2, 1, 4), expected_m=2)
    assert str(raised.value).splitlines()[0].startswith("masked_grouped_linear:")
