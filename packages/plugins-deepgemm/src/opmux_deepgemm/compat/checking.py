"""What DeepGEMM's names check before they call an op."""

from collections.abc import Sequence

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall

Scaled = tuple[Tensor, Tensor]
"""Codes in float8_e4m3fn, and their scales in float32."""
Recipe = tuple[int, int, int] | None
"""Blocks of scales: rows of a, rows of b, columns of both; None stands for (1, 128, 128)."""
Block = tuple[int, int] | None
"""Rows and columns of the blocks of one operand, which may be given instead of the recipe."""


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
