"""Checks of single arguments of DeepGEMM's names: kinds, ranks and numbers."""

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import InvalidArgument, UnsupportedCall


def check_tensor(name: str, argument: str, given: Any, rank: int) -> None:
    """Check that an argument is a tensor of this rank."""
    if not isinstance(given, Tensor):
        raise InvalidArgument(
            f"{name}: `{argument}` expected a tensor of rank {rank}, got {type(given).__name__}; pass one"
        )
    if given.dim() != rank:
        raise InvalidArgument(f"{name}: `{argument}` expected rank {rank}, got shape {list(given.shape)}; reshape it")


def check_scales(name: str, given: Any) -> None:
    """Check that scales by themselves are a tensor that has rows and blocks."""
    if not isinstance(given, Tensor) or given.dim() < 2:
        got = f"shape {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise InvalidArgument(f"{name}: `sf` expected a tensor of rank 2 or more, got {got}; see its docstring")


def check_pairs(name: str, a: Any, b: Any) -> None:
    """Check that both operands are codes and their scales."""
    for operand, given in (("a", a), ("b", b)):
        if not (isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(t, Tensor) for t in given)):
            what = f"{len(given)} of them" if isinstance(given, (tuple, list)) else type(given).__name__
            raise InvalidArgument(
                f"{name}: `{operand}` expected two tensors, codes and their scales, got {what}; make them with "
                "opmux.quantize"
            )


def check_codes(name: str, a: Any, b: Any, rank_a: int, rank_b: int) -> None:
    """Check that both operands are codes and their scales of these ranks."""
    check_pairs(name, a, b)
    for operand, (codes, scales), rank in (("a", a, rank_a), ("b", b, rank_b)):
        if codes.dim() != rank or scales.dim() != rank:
            raise InvalidArgument(
                f"{name}: `{operand}` expected codes and scales of rank {rank}, got shapes {list(codes.shape)} and "
                f"{list(scales.shape)}; reshape them"
            )


def check_layout(name: str, layout: Any, count: int, what: str, remedy: str = "see `use_psum_layout`") -> None:
    """Check what says where groups of rows are."""
    given = f"{dtype(layout)}{list(layout.shape)}" if isinstance(layout, Tensor) else type(layout).__name__
    if not isinstance(layout, Tensor) or layout.dtype != torch.int32 or tuple(layout.shape) != (count,):
        raise InvalidArgument(f"{name}: `grouped_layout` expected int32[{count}], {what}, got {given}; {remedy}")


def sizes_of(name: str, ks_cpu: Sequence[int] | None, use_psum_layout: bool) -> list[int]:
    """How many rows each group has, which must be on the host."""
    if use_psum_layout:
        raise UnsupportedCall(
            f"{name}: `use_psum_layout` expected False on Hopper GPUs, got {use_psum_layout}; say with `ks_cpu` and "
            "`grouped_layout` how many rows each group has, one group behind the other"
        )
    if ks_cpu is None:
        raise UnsupportedCall(
            f"{name}: `ks_cpu` expected how many rows each group has, got None; give the numbers of `grouped_layout`, "
            "which on Hopper GPUs are needed on the host too"
        )
    try:
        sizes = [operator.index(size) for size in ks_cpu]
    except TypeError:
        sizes = [-1]
    if min(sizes, default=0) < 0:
        raise InvalidArgument(
            f"{name}: `ks_cpu` expected whole numbers from 0, got {ks_cpu}; give how many rows each group has"
        )
    return sizes


def check_numbers(name: str, argument: str, given: Any, count: int, what: str) -> None:
    """Check that an argument is None or so many numbers."""
    if given is None:
        return
    if (
        not isinstance(given, (tuple, list))
        or len(given) != count
        or not all(isinstance(one, Integral) for one in given)
    ):
        raise InvalidArgument(f"{name}: `{argument}` expected None or {count} numbers, got {given!r}; give {what}")


def check_number(name: str, argument: str, given: Any, least: int, most: int | None = None) -> None:
    """Check that an argument is a whole number, within bounds."""
    if not isinstance(given, Integral) or not least <= int(given) or (most is not None and int(given) > most):
        wanted = f"from {least}" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"{name}: `{argument}` expected a number {wanted}, got {given!r}")


def dtype(tensor: Tensor) -> str:
    """The name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")
