"""How rows are folded into parts."""

import torch

from opmux_triton.rows import parts


def test_contiguous_rows_are_one_part_with_one_stride() -> None:
    ((rows, tensors),) = parts((torch.empty(2, 3, 8),))
    assert rows == (6, None, (8,), (None,))
    assert len(tensors) == 1


def test_rows_of_a_slice_have_two_strides() -> None:
    x = torch.empty(2, 5, 16)[:, :3, :8]
    ((rows, _),) = parts((x, torch.empty(2, 3, 8)))
    assert rows == (6, 3, (16, 8), (80, 24))


def test_what_folds_in_one_tensor_only_is_not_folded() -> None:
    x, y = torch.empty(2, 3, 8), torch.empty(3, 2, 8).transpose(0, 1)
    ((rows, _),) = parts((x, y))
    assert rows == (6, 3, (8, 16), (24, 8))


def test_three_strides_are_several_parts_that_cover_everything() -> None:
    x, y = torch.zeros(4, 6, 10, 8)[::2, ::2, ::2], torch.zeros(2, 3, 5, 8)
    seen = 0
    for rows, (part, result) in parts((x,), (y,)):
        assert rows.total == result.numel() // 8
        part += 1
        result += 1
        seen += rows.total
    assert seen == 30
    assert bool((x == 1).all())
    assert bool((y == 1).all())


def test_a_single_row_is_a_part() -> None:
    ((rows, _),) = parts((torch.empty(8),))
    assert rows == (1, None, (0,), (None,))
