"""What DeepGEMM's names check before they call an op."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall

Scaled = tuple[Tensor, Tensor]
"""Codes in float8_e4m3fn, and their scales in float32."""
Recipe = tuple[int, int, int] | None
"""Blocks of scales: rows of a, rows of b, columns of both; None stands for (1, 128, 128)."""
Block = tuple[int, int] | None
"""Rows and columns of the blocks of one operand, which may be given instead of the recipe."""


NEWER = {
    "alpha": "multiply `d` afterwards",
    "use_psum_layout": "say with `ks` and `ks_tensor` how many rows each group has, one group behind the other",
}
"""Keywords of DeepGEMM 2.8 that 2.6 does not have, and what to do instead."""

_Given = ParamSpec("_Given")


def of_2_6(function: Callable[_Given, None]) -> Callable[_Given, None]:
    """Refuse a newer DeepGEMM's keywords that the function does not have, by name."""
    name, has = function.__name__, inspect.signature(function).parameters

    @wraps(function)
    def call(*given: _Given.args, **keywords: _Given.kwargs) -> None:
        for keyword, value in keywords.items():
            if keyword in NEWER and keyword not in has:
                raise UnsupportedCall(
                    f"{name}: `{keyword}` expected to be left out, as DeepGEMM 2.6 has no such keyword, got "
                    f"{value!r}; {NEWER[keyword]}"
                )
        function(*given, **keywords)

    return call


def check_codes(name: str, a: Any, b: Any) -> None:
    """Check that both operands are codes and their scales."""
    for operand, given in (("a", a), ("b", b)):
        if not (isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(t, Tensor) for t in given)):
            what = f"{len(given)} of them" if isinstance(given, (tuple, list)) else type(given).__name__
            raise InvalidArgument(
                f"{name}: `{operand}` expected two tensors, codes and their scales, got {what}; make them with "
                "opmux.quantize"
            )


def check_result(name: str, d: Tensor, a: Tensor, b: Tensor) -> None:
    """Check that both operands are matrices, and that the result is as large as their product, on a's device."""
    for operand, given in (("a", a), ("b", b)):
        if given.dim() != 2:
            raise InvalidArgument(f"{name}: `{operand}` expected rank 2, got shape {list(given.shape)}; reshape it")
    wanted = (a.shape[0], b.shape[0])
    if tuple(d.shape) != wanted or d.device != a.device:
        raise InvalidArgument(
            f"{name}: `d` expected shape {list(wanted)} on {a.device}, got {list(d.shape)} on {d.device}; make it with "
            "torch.empty of that shape and device"
        )


def check_layout(name: str, layout: Tensor, count: int, what: str) -> None:
    """Check what says where groups of rows are."""
    if layout.dtype != torch.int32 or tuple(layout.shape) != (count,):
        raise InvalidArgument(
            f"{name}: `grouped_layout` expected int32[{count}], {what}, got {dtype(layout)}{list(layout.shape)}; see "
            "`use_psum_layout`"
        )


def check(name: str, compiled_dims: str, d: Tensor | None = None, c: Tensor | None = None) -> None:
    """Check the keywords, the result's dtype, and that what is added is like the result."""
    if set(compiled_dims) - set("mnk"):
        raise InvalidArgument(f"{name}: `compiled_dims` expected letters of 'mnk', got {compiled_dims!r}")
    if d is not None and d.dtype not in (torch.bfloat16, torch.float32):
        raise UnsupportedCall(f"{name}: `d` expected bfloat16 or float32, got {dtype(d)}; convert the result")
    if d is not None and c is not None and (c.shape != d.shape or c.dtype != d.dtype):
        raise InvalidArgument(f"{name}: `c` expected {dtype(d)}{list(d.shape)}, as d is, got {dtype(c)}{list(c.shape)}")


def check_sums(name: str, recipe: Recipe, compiled_dims: str, d: Tensor, c: Tensor | None, ks: Sequence[int]) -> None:
    """The same of codes whose rows are summed, group by group."""
    check(name, compiled_dims, d, c)
    if recipe is None or tuple(recipe) != (1, 1, 128):
        raise UnsupportedCall(f"{name}: `recipe` expected (1, 1, 128), got {recipe}; scale by such blocks")
    if any(size % 128 for size in ks):
        raise InvalidArgument(f"{name}: `ks` expected multiples of 128, got {list(ks)}; pad each group with zeros")


def check_rows(name: str, ks: Sequence[int], ks_tensor: Tensor, rows: int) -> None:
    """Check that the groups have all rows."""
    if len(ks) != len(ks_tensor) or sum(ks) != rows:
        raise InvalidArgument(
            f"{name}: `ks` expected {len(ks_tensor)} numbers whose sum is {rows}, got {len(ks)} with the sum "
            f"{sum(ks)}; give each group's rows of `a`"
        )


def check_flat(name: str, operand: str, given: Scaled, rows: int, columns: int) -> None:
    """Check codes of matrices one after the other, all of so many rows, and their scales side by side."""
    codes, scales = given
    if codes.numel() != rows * columns or tuple(scales.shape) != (rows, columns // 128):
        raise InvalidArgument(
            f"{name}: `{operand}` expected {rows * columns} codes, `ks` columns of {rows} rows, and scales "
            f"{[rows, columns // 128]}, got {codes.numel()} and {list(scales.shape)}; see `d` for the rows"
        )


def rows_of_b(name: str, recipe: Recipe, recipe_a: Block, recipe_b: Block) -> int:
    """Rows of the blocks of b; those of a have one, and columns are 128."""
    if recipe is None and (recipe_a is not None or recipe_b is not None):
        (rows_a, columns_a), (rows_b, columns_b) = recipe_a or (1, 128), recipe_b or (128, 128)
        blocks = rows_a, rows_b, columns_a if columns_a == columns_b else 0
    else:
        blocks = recipe or (1, 128, 128)
    if tuple(blocks) not in ((1, 128, 128), (1, 1, 128)):
        given = recipe if recipe is not None else (recipe_a, recipe_b)
        raise UnsupportedCall(
            f"{name}: `recipe` expected None, (1, 128, 128) or (1, 1, 128), got {given}; scale by such blocks"
        )
    return blocks[1]


def need_squares(name: str, recipe: Recipe, recipe_a: Block, recipe_b: Block) -> None:
    """Refuse blocks of b that are not 128x128."""
    if rows_of_b(name, recipe, recipe_a, recipe_b) != 128:
        raise UnsupportedCall(
            f"{name}: `recipe` expected None or (1, 128, 128), got {recipe or (recipe_a, recipe_b)}; scale by such "
            "blocks"
        )


def begin(total: Tensor, c: Tensor | None) -> None:
    """Put what is added to where the product is added."""
    if c is None:
        total.zero_()
    elif c.data_ptr() != total.data_ptr():
        total.copy_(c)


def dtype(tensor: Tensor) -> str:
    """The name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")
