"""What DeepGEMM's names have alike: how they are published, and what products check before they call an op."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall
from opmux_deepgemm.compat.arguments import check_codes, check_layout, check_numbers, check_tensor, dtype

Scaled = tuple[Tensor, Tensor]
"""Codes in float8_e4m3fn, and their scales in float32."""
Recipe = tuple[int, int, int] | None
"""Blocks of scales: rows of a, rows of b, columns of both; None stands for (1, 128, 128)."""
Block = tuple[int, int] | None
"""Rows and columns of the blocks of one operand; those of both may be given instead of the recipe."""

NEWER = {"alpha": "multiply `d` afterwards"}
"""Keywords of DeepGEMM 2.8 that 2.6 does not have, and what to do instead."""
OLDER = {"ks": "ks_cpu", "ks_tensor": "grouped_layout"}
"""Names of arguments in DeepGEMM 2.5, and those of 2.6; both are taken."""

_Given = ParamSpec("_Given")


def published(
    product: Callable[Concatenate[str, _Given], None], name: str, says: str | None = None
) -> Callable[_Given, None]:
    """A function of DeepGEMM's interface.

    Args:
        product: what it does; given the name first, for its errors.
        name: DeepGEMM's name of it.
        says: its docstring; None takes the product's.

    Returns:
        The function, which refuses a newer DeepGEMM's keywords by name.
    """
    signature = inspect.signature(product)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    has = frozenset(signature.parameters)

    def call(*given: _Given.args, **keywords: _Given.kwargs) -> None:
        if not has.issuperset(keywords):
            _translate(name, has, keywords)
        try:
            product(name, *given, **keywords)
        except TypeError:
            try:
                signature.bind(*given, **keywords)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None  # Python's own would name the product
            raise

    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = product.__module__, says or product.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _translate(name: str, has: frozenset[str], keywords: dict[str, Any]) -> None:
    for keyword in [keyword for keyword in keywords if keyword not in has]:
        if keyword in NEWER:
            raise UnsupportedCall(
                f"{name}: `{keyword}` expected to be left out, as DeepGEMM 2.6 has no such keyword, got "
                f"{keywords[keyword]!r}; {NEWER[keyword]}"
            )
        new = OLDER.get(keyword)
        if new in has and new not in keywords:
            keywords[new] = keywords.pop(keyword)


def of_views(
    product: Callable[Concatenate[str, Any, Any, _Given], None], a_turned: bool, b_turned: bool, scaled: bool = False,
    rank_b: int = 2,
) -> Callable[Concatenate[str, Any, Any, _Given], None]:  # fmt: skip
    """A product whose operands are given transposed, scales likewise.

    Args:
        product: what it does with operands along k; given the name first, for its errors.
        a_turned, b_turned: which operands are turned.
        scaled: whether operands are codes and their scales.
        rank_b: that of b; a has rank 2.
    """

    def turn(operand: Any, turned: bool) -> Any:
        if not turned:
            return operand
        return (operand[0].mT, operand[1].mT) if scaled else operand.mT

    def form(name: str, a: Any, b: Any, *more: _Given.args, **keywords: _Given.kwargs) -> None:
        if scaled:
            check_codes(name, a, b, 2, rank_b)
        else:
            check_tensor(name, "a", a, 2)
            check_tensor(name, "b", b, rank_b)
        product(name, turn(a, a_turned), turn(b, b_turned), *more, **keywords)

    form.__module__, form.__doc__ = product.__module__, product.__doc__
    form.__signature__ = inspect.signature(product)  # type: ignore[attr-defined]
    return form  # type: ignore[return-value]  # a and b may also be given by name


def check_result(name: str, d: Tensor, a: Tensor, b: Tensor) -> None:
    """Check that two matrices have the same k, and that d is as large as their product; all on a's device."""
    if a.shape[1] != b.shape[1] or a.device != b.device:
        raise InvalidArgument(
            f"{name}: `b` expected k = {a.shape[1]} on {a.device}, as `a` has, got k = {b.shape[1]} on {b.device}; "
            "give both the same"
        )
    wanted = (a.shape[0], b.shape[0])
    if tuple(d.shape) != wanted or d.device != a.device:
        raise InvalidArgument(
            f"{name}: `d` expected shape {list(wanted)} on {a.device}, got {list(d.shape)} on {d.device}; make it with "
            "torch.empty of that shape and device"
        )


def check(name: str, compiled_dims: str, d: Tensor, rank: int, c: Tensor | None = None) -> None:
    """Check the keywords, the result's rank and dtype, and that what is added is like the result."""
    if not isinstance(compiled_dims, str) or set(compiled_dims) - set("mnk"):
        raise InvalidArgument(f"{name}: `compiled_dims` expected letters of 'mnk', got {compiled_dims!r}")
    check_tensor(name, "d", d, rank)
    if d.dtype not in (torch.bfloat16, torch.float32):
        raise UnsupportedCall(f"{name}: `d` expected bfloat16 or float32, got {dtype(d)}; convert the result")
    if c is None:
        return
    check_tensor(name, "c", c, rank)
    if c.shape != d.shape or c.dtype != d.dtype:
        raise InvalidArgument(f"{name}: `c` expected {dtype(d)}{list(d.shape)}, as d is, got {dtype(c)}{list(c.shape)}")
    if c.device != d.device:
        raise InvalidArgument(f"{name}: `c` expected a tensor on {d.device}, as d is, got one on {c.device}; move it")


def check_sums(name: str, recipe: Recipe, compiled_dims: str, d: Tensor, c: Tensor | None, ks: Sequence[int]) -> None:
    """The same of codes whose rows are summed, group by group."""
    check(name, compiled_dims, d, 3, c)
    if not isinstance(recipe, (tuple, list)) or tuple(recipe) != (1, 1, 128):
        raise UnsupportedCall(f"{name}: `recipe` expected (1, 1, 128), got {recipe}; scale by such blocks")
    if any(size % 128 for size in ks):
        raise InvalidArgument(f"{name}: `ks_cpu` expected multiples of 128, got {list(ks)}; pad each group with zeros")


def check_rows(name: str, ks: Sequence[int], layout: Tensor, d: Tensor, rows: int) -> None:
    """Check that there is a group for each matrix of d, and that the groups have all rows."""
    groups = len(d)
    check_layout(name, layout, groups, "how many rows each group of `d` has", "give the numbers of `ks_cpu` as such")
    if len(ks) != groups or sum(ks) != rows:
        raise InvalidArgument(
            f"{name}: `ks_cpu` expected {groups} numbers whose sum is {rows}, got {len(ks)} with the sum {sum(ks)}; "
            "give each group's rows of `a`"
        )


def check_flat(name: str, operand: str, given: Scaled, rows: int, columns: int) -> None:
    """Check codes of matrices one after the other, all of so many rows, and their scales side by side."""
    codes, scales = given
    if codes.numel() != rows * columns or tuple(scales.shape) != (rows, columns // 128):
        raise InvalidArgument(
            f"{name}: `{operand}` expected {rows * columns} codes, `ks_cpu` columns of {rows} rows, and scales "
            f"{[rows, columns // 128]}, got {codes.numel()} and {list(scales.shape)}; see `d` for the rows"
        )


def rows_of_b(name: str, recipe: Recipe, recipe_a: Block, recipe_b: Block) -> int:
    """Rows of the blocks of b; those of a have one, and columns are 128."""
    check_numbers(name, "recipe", recipe, 3, "the rows of the blocks of a and of b, and their columns")
    check_numbers(name, "recipe_a", recipe_a, 2, "the rows and columns of a's blocks")
    check_numbers(name, "recipe_b", recipe_b, 2, "the rows and columns of b's blocks")
    if (recipe_a is None) != (recipe_b is None):
        raise InvalidArgument(
            f"{name}: `recipe_a` and `recipe_b` expected both or none, got {recipe_a} and {recipe_b}; give both, or "
            "`recipe`"
        )
    blocks: tuple[int, ...] = tuple(recipe or (1, 128, 128))
    if recipe_a is not None and recipe_b is not None:
        if recipe is not None:
            raise InvalidArgument(
                f"{name}: `recipe` expected None beside `recipe_a` and `recipe_b`, got {recipe} beside {recipe_a} and "
                f"{recipe_b}; leave one of them out"
            )
        (rows_a, columns_a), (rows_b, columns_b) = recipe_a, recipe_b
        blocks = rows_a, rows_b, columns_a if columns_a == columns_b else 0
    if blocks not in ((1, 128, 128), (1, 1, 128)):
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
