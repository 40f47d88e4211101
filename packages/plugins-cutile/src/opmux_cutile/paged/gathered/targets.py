"""What the core calls for attention over a paged cache where both operands of the matrix units come from registers."""

from functools import partial
from typing import Any

from torch import Tensor

from opmux_cutile.paged.configs import PagedConfig
from opmux_cutile.paged.targets import attend, kernel_of_keys

KERNEL = partial(kernel_of_keys, even=True)


def paged_attention(*tensors: Tensor | None, config: PagedConfig, **options: Any) -> Tensor:
    """The op `paged_attention`."""
    return attend("paged_attention", tensors, False, options, config, KERNEL)[0]


def paged_attention_lse(
    *tensors: Tensor | None, config: PagedConfig, **options: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The op `paged_attention_lse`."""
    return attend("paged_attention_lse", tensors, True, options, config, KERNEL)
