"""Whether views overlap, decided by their strides, held to a count of the bytes."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opmux.signatures import memory

POOL = torch.zeros(1000)


def bytes_of(tensor: Tensor) -> list[int]:
    width = tensor.element_size()
    places = itertools.product(*(range(size) for size in tensor.shape))
    starts = [sum(i * s for i, s in zip(place, tensor.stride(), strict=True)) * width for place in places]
    return [tensor.data_ptr() + start + byte for start in starts for byte in range(width)]


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    pool = POOL if draw(st.booleans()) else POOL.view(torch.int8)
    rank = draw(st.integers(0, 3))
    shape = [draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 4)) for _ in range(rank)]
    strides = [draw(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 24, 48])) for _ in range(rank)]
    return pool.as_strided(shape, strides, draw(st.integers(0, 200)))


@settings(max_examples=600, deadline=None, derandomize=True)
@given(views(), views())
def test_two_views_overlap_where_they_share_a_byte(a: Tensor, b: Tensor) -> None:
    shared = bool(set(bytes_of(a)) & set(bytes_of(b)))
    assert memory.overlap(a, b) == shared
    if not memory.overlaps_itself(a):
        assert memory.separate((a,), (b,)) != shared


@settings(max_examples=600, deadline=None, derandomize=True)
@given(views())
def test_a_view_overlaps_itself_where_two_elements_share_a_byte(view: Tensor) -> None:
    found = bytes_of(view)
    shared = len(set(found)) < len(found)
    assert memory.overlaps_itself(view) == shared
    assert memory.separate((view,), ()) != shared


def test_strides_that_interleave_share_nothing() -> None:
    """Offsets 0, 2, 4 and 3, 5, 7: the longer stride is smaller than the span of the shorter, and no two are equal."""
    view = POOL.as_strided((3, 2), (2, 3))
    assert len(set(bytes_of(view))) == view.numel() * view.element_size()
    assert not memory.overlaps_itself(view)
    assert memory.separate((view,), ())
    assert memory.overlaps_itself(POOL.as_strided((4, 2), (2, 6))), "0, 2, 4, 6 and 6, 8, 10, 12"


def test_the_layouts_of_models_do_not_overlap() -> None:
    qkv = torch.zeros(2, 5, 3 * 32)
    q, k, v = (part.unflatten(-1, (4, 8)) for part in qkv.split(32, -1))
    caches = torch.zeros(6, 2, 16, 3, 8)
    heads_first = torch.zeros(6, 3, 16, 16).transpose(1, 2)
    pairs = [
        (q, k), (k, v), (q, v), (caches[:, 0], caches[:, 1]), (heads_first[..., :8], heads_first[..., 8:]),
        (qkv[0], qkv[1]), (qkv[:, 1:], qkv[:, :1]), (qkv[..., ::2], qkv[..., 1::2]),
    ]  # fmt: skip
    for a, b in pairs:
        assert not memory.overlap(a, b)
        assert not memory.overlaps_itself(a)
        assert memory.separate((a, b), ())
        assert memory.separate((a,), (b, None))


@pytest.mark.parametrize("of", [lambda x: x.to("meta"), lambda x: x.to_sparse()])
def test_what_has_no_address_is_not_judged(of) -> None:
    x = torch.zeros(3, 4)
    assert memory.has_memory(x)
    assert not memory.has_memory(of(x))


def test_views_too_tangled_to_judge_count_as_overlapping() -> None:
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
    pool = torch.zeros(200_000, dtype=torch.int8)
    a = pool.as_strided([4] * len(primes), [210 * p for p in primes], 0)
    b = pool.as_strided([4] * len(primes), [210 * p + 2 for p in primes], 1)
    assert memory.overlap(a, b)


@pytest.mark.parametrize(
    ("strides", "decided"),
    [
        ([6, 9, 11, 12, 13], True),
        ([77, 117, 137, 148, 154, 157, 159, 160, 161], True),
        ([285, 433, 510, 550, 570, 581, 587, 590, 592, 593, 594], False),
    ],
)
def test_many_dims_that_interleave_are_decided_within_the_steps(strides: list[int], decided: bool) -> None:
    """Sums of any of these numbers are distinct, so no two elements of the view share an address."""
    view = torch.zeros(sum(strides) + 1, dtype=torch.int8).as_strided([2] * len(strides), strides)
    assert len(set(bytes_of(view))) == view.numel()
    assert memory.overlaps_itself(view) != decided
