"""What constraints ask of a tensor's memory: short ways for contiguous tensors give what the long ways give."""

import itertools

import pytest
import torch
from torch import Tensor

from opmux.declared.layout import aligned, span

LAID_OUT = {
    "rows": torch.zeros(4, 8),
    "odd rows": torch.zeros(4, 7),
    "one odd row": torch.zeros(1, 7),
    "column": torch.zeros(5, 1),
    "vector": torch.zeros(7),
    "number": torch.zeros(()),
    "three dims": torch.zeros(2, 3, 8),
    "turned": torch.zeros(8, 4).t(),
    "gaps": torch.zeros(4, 16)[:, :8],
    "odd gaps": torch.zeros(4, 9)[:, :8],
    "later": torch.zeros(64)[3:35].view(4, 8),
    "expanded": torch.zeros(1, 8).expand(4, 8),
    "nothing": torch.zeros(0, 8),
}


def slowly_aligned(tensor: Tensor, alignment: int) -> bool:
    """By every stride."""
    strides = [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and s != 1]
    return not any(value % alignment for value in (tensor.data_ptr(), *(s * tensor.element_size() for s in strides)))


def slow_span(tensor: Tensor) -> int:
    """By the place of the last element."""
    places = itertools.product(*(range(n) for n in tensor.shape))
    return max((sum(i * s for i, s in zip(at, tensor.stride(), strict=True)) + 1 for at in places), default=0)


@pytest.mark.parametrize("name", LAID_OUT)
def test_alignment_is_that_of_the_address_and_every_stride(name: str) -> None:
    for alignment in (4, 8, 16, 32):
        assert aligned(LAID_OUT[name], alignment) == slowly_aligned(LAID_OUT[name], alignment)


@pytest.mark.parametrize("name", LAID_OUT)
def test_a_span_reaches_from_the_first_to_the_last_element(name: str) -> None:
    assert span(LAID_OUT[name]) == slow_span(LAID_OUT[name])
