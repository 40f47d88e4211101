"""Guarded memory sees what is written and read past a tensor; poison is where nothing has been written."""

import pytest
import torch

from opmux.testing.memory import GUARD_BYTES, VIEWS, bits, guarded, guarded_empty, poison_
from opmux.testing.poison import poison_freed, poisoned

CPU = torch.device("cpu")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(3, 5), (7,), (), (2, 0, 4), (2, 3, 16)])
def test_a_view_holds_the_values(view: str, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape)
    made = guarded(values, view)
    expected = values[:1].expand_as(values) if view == "expanded" and len(shape) > 1 else values
    if view == "expanded" and len(shape) == 1:
        expected = values
    assert made.tensor.shape == values.shape
    assert torch.equal(made.tensor, expected)


def test_views_are_what_they_are_called() -> None:
    shape = (4, 6, 10)
    made = {view: guarded(torch.randn(shape), view).tensor for view in VIEWS}
    assert made["plain"].is_contiguous()
    assert made["plain"].data_ptr() % 64 == 0
    assert made["gapped"].stride() == (192, 32, 1)
    assert made["permuted"].stride() == (1, 4, 24)
    assert made["strided"].stride(-1) == 2
    assert made["offset"].is_contiguous()
    assert made["offset"].data_ptr() % 64 == made["offset"].element_size()
    assert made["expanded"].stride() == (0, 10, 1)


@pytest.mark.parametrize("view", ["plain", "gapped", "strided", "permuted", "offset"])
@pytest.mark.parametrize("where", [-1, 1])
def test_a_write_outside_is_seen(view: str, where: int) -> None:
    made = guarded(torch.randn(3, 5), view)
    made.remember()
    made.tensor.fill_(2.0)
    assert made.changed_outside() == 0
    assert made.changed_inside().all()
    span = 1 + sum((n - 1) * s for n, s in zip(made.tensor.shape, made.tensor.stride(), strict=True))
    beyond = made.tensor.storage_offset() + (span if where > 0 else -1)
    made.buffer[beyond] = 0.0
    assert made.changed_outside() == 1


def test_a_write_into_a_gap_is_seen() -> None:
    made = guarded(torch.randn(3, 5), "strided")
    made.remember()
    made.buffer[made.tensor.storage_offset() + 1] = 0.0
    assert made.changed_outside() == 1


def test_a_nan_that_becomes_another_nan_is_a_write() -> None:
    made = guarded_empty((4,), torch.float32, CPU)
    made.remember()
    made.buffer.view(torch.int32)[0] ^= 1
    assert made.buffer.isnan().all()
    assert made.changed_outside() == 1


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.int32, torch.int8, torch.bool],
)
def test_poison_of_every_dtype(dtype: torch.dtype) -> None:
    filled = poison_(torch.zeros(5, dtype=dtype))
    if dtype.is_floating_point:
        assert filled.to(torch.float32).isnan().all()
    else:
        assert filled.ne(torch.zeros_like(filled)).all()
    assert bits(filled).unique().numel() == 1


def test_memory_around_a_tensor_is_poison() -> None:
    made = guarded(torch.ones(8))
    step = GUARD_BYTES // 4
    assert made.buffer[:step].isnan().all()
    assert made.buffer[-step:].isnan().all()
    assert made.buffer.numel() == 8 + 2 * step


MAKERS = [
    lambda: torch.empty(3, 4),
    lambda: torch.empty((3, 4), dtype=torch.bfloat16),
    lambda: torch.empty_like(torch.ones(3, 4)),
    lambda: torch.empty_strided((3, 4), (1, 3)),
    lambda: torch.ones(2).new_empty((3, 4)),
    lambda: torch.ones(2).new_empty_strided((3, 4), (4, 1)),
    lambda: torch._C._dynamo.guards._empty_strided_cpu((3, 4), (4, 1), torch.float32),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_allocated_is_poisoned_and_guarded(make: object) -> None:
    assert callable(make)
    with poisoned() as allocated:
        made = make()
    assert made.shape == (3, 4)
    assert made.isnan().all()
    (buffer,) = allocated
    assert buffer.tensor is made
    assert buffer.changed_outside() == 0
    made.as_strided((1,), (1,), made.storage_offset() - 1).fill_(0.0)
    assert buffer.changed_outside() == 1


def test_zeros_are_zeros_and_guarded() -> None:
    with poisoned() as allocated:
        made = torch.zeros(5)
        other = torch.ones(3).new_zeros(2)
    assert made.eq(0).all()
    assert other.eq(0).all()
    assert len(allocated) == 2


def test_allocation_that_python_does_not_make_is_poisoned_too() -> None:
    empty = torch.ops.aten.empty.memory_format
    with poisoned() as allocated:
        assert empty([4], dtype=torch.float32).isnan().all()
    assert allocated == []


def test_everything_is_put_back() -> None:
    before = (torch.empty, torch.zeros, torch.Tensor.new_empty, torch.get_deterministic_debug_mode())
    with pytest.raises(ZeroDivisionError), poisoned():
        divmod(1, 0)
    with poisoned():
        assert torch.empty is not before[0]
    after = (torch.empty, torch.zeros, torch.Tensor.new_empty, torch.get_deterministic_debug_mode())
    assert after == before
    assert "new_empty" not in torch.Tensor.__dict__


def test_functions_that_were_kept_allocate_as_before_afterwards() -> None:
    with poisoned() as allocated:
        kept = torch._C._dynamo.guards._empty_strided_cpu
        kept((3,), (1,), torch.float32)
    assert kept((3,), (1,), torch.float32).untyped_storage().nbytes() == 12
    assert len(allocated) == 1
    assert torch._C._dynamo.guards._empty_strided_cpu is not kept


def test_other_threads_are_left_alone() -> None:
    import threading

    made: list[torch.Tensor] = []
    with poisoned() as allocated:
        thread = threading.Thread(target=lambda: made.append(torch.empty(3)))
        thread.start()
        thread.join()
    assert len(made) == 1
    assert allocated == []


def test_freed_blocks_are_poison() -> None:
    poison_freed([((4, 4), torch.float32), ((0,), torch.float32), ((3,), torch.int8)], CPU)
