"""Tensors as the operands of a product."""

import torch
from planted_launches import made

from opmux_triton.gemm.operands import matrix_of, rows_of
from opmux_triton.launch import recording


def test_leading_dims_that_fold_are_rows_of_one_stride() -> None:
    operand = rows_of(made(2, 3, 64), rows_are_k=False)
    assert (operand.rows, operand.columns, operand.row, operand.col) == (6, 64, 64, 1)
    assert not operand.is_folded
    assert operand.fits_descriptor


def test_two_strides_are_an_inner_and_an_outer_one() -> None:
    operand = rows_of(made(2, 5, 64)[:, :3], rows_are_k=False)
    assert (operand.rows, operand.inner, operand.outer, operand.row) == (6, 3, 320, 64)
    assert operand.is_folded
    assert not operand.fits_descriptor


def test_more_strides_are_packed_first() -> None:
    x = made(4, 6, 10, 64)[::2, ::2, ::2]
    with recording("sm_90") as recorded:
        operand = rows_of(x, rows_are_k=False)
    assert [launch.kernel.__name__ for launch in recorded.launches] == ["pack_rows"] * 2
    assert operand.tensor.is_contiguous()
    assert (operand.rows, operand.row) == (30, 64)


def test_a_descriptor_needs_unit_columns_and_rows_of_16_bytes() -> None:
    assert not matrix_of(made(64, 65)[:, :64], False).fits_descriptor
    assert not matrix_of(made(64, 64).t(), False).fits_descriptor
    assert matrix_of(made(64, 64).t(), False).along_memory.fits_descriptor
    assert not matrix_of(made(1, 64).expand(8, 64), False).fits_descriptor
    assert matrix_of(made(1, 63), False).fits_descriptor  # a single row takes any stride


def test_a_described_operand_has_its_block_along_k_last_unless_its_rows_are_k() -> None:
    operand = matrix_of(torch.empty(96, 64, dtype=torch.bfloat16, device="meta"), False)
    assert operand.described(32, 16) == ([96, 64], [64, 1], [32, 16])
    assert operand._replace(rows_are_k=True).described(32, 16) == ([96, 64], [64, 1], [16, 32])
    assert matrix_of(made(1, 63), False).described(32, 16)[1] == [64, 1]


def test_a_transposed_matrix_is_read_along_its_columns() -> None:
    w = made(96, 64).t()
    turned = matrix_of(w, False).along_memory
    assert turned.tensor is w
    assert (turned.rows, turned.columns, turned.row, turned.col, turned.rows_are_k) == (96, 64, 64, 1, True)
    assert matrix_of(w, True).along_memory.rows_are_k is False


def test_other_matrices_are_read_as_they_are() -> None:
    dense, single, folded = matrix_of(made(64, 96), False), matrix_of(made(96, 1).t(), False), made(2, 5, 64)[:, :3]
    for operand in (dense, single, rows_of(folded, False), matrix_of(made(64, 96)[:, ::2], False)):
        assert operand.along_memory is operand
