"""The rules for the dtypes of outputs: what ``define_op(out_dtype=...)`` may say of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opmux.dtypes import accumulation_dtype


@dataclass(frozen=True)
class Accumulated:
    """An output dtype: the accumulation dtype of the named argument (float32; float64 for float64)."""

    argument: str

    def of(self, dtype: torch.dtype, options: Mapping[str, Any]) -> torch.dtype:
        """The output's dtype for this dtype of the argument."""
        return accumulation_dtype(dtype)


@dataclass(frozen=True)
class Widened:
    """An output dtype: that of the named argument, or bfloat16 where that is an 8-bit one."""

    argument: str

    def of(self, dtype: torch.dtype, options: Mapping[str, Any]) -> torch.dtype:
        """The output's dtype for this dtype of the argument."""
        return torch.bfloat16 if dtype.itemsize == 1 else dtype


@dataclass(frozen=True)
class Chosen:
    """An output dtype that an option chooses: that of the named argument, or the one its sums are accumulated in.

    None and the argument's own dtype mean the same; validation and the call path make None of both.
    """

    option: str
    argument: str

    def of(self, dtype: torch.dtype, options: Mapping[str, Any]) -> torch.dtype:
        """The output's dtype for this dtype of the argument and this value of the option."""
        asked: torch.dtype | None = options[self.option]
        return dtype if asked is None else asked


OutputDtype = str | torch.dtype | Accumulated | Widened | Chosen
"""A string is the name of an argument, or of an option that holds a dtype."""


def output_dtype(
    rule: OutputDtype, dtypes: Mapping[str, torch.dtype | None], options: Mapping[str, Any]
) -> torch.dtype:
    """The dtype of an output.

    Args:
        rule: the output's.
        dtypes: of the tensors in their order, None for an absent one; its masked gradient has that of the first.
        options: all of the call's.
    """
    if isinstance(rule, torch.dtype):
        return rule
    if isinstance(rule, str) and rule in options:
        asked: torch.dtype = options[rule]
        return asked
    found = dtypes[rule if isinstance(rule, str) else rule.argument] or next(iter(dtypes.values()))
    assert found is not None  # the first tensor is always given
    return found if isinstance(rule, str) else rule.of(found, options)
