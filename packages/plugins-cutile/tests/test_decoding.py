"""Which decoding copies pages as slices, and which looks up each key."""

import pytest
import torch
from cubins import kernels, meta
from torch import Tensor

from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.decoding.slices import parts_of, rooms_of

FP8 = torch.float8_e4m3fn


def name(q: Tensor, *caches: Tensor, arch: str = "sm_90", new: int = 1) -> str:
    """The kernel that attends, of eight sequences."""
    ints = (meta(size, dtype=torch.int32) for size in (9, 8))
    options = {"max_seqlen_q": new, "max_seqlen_k": 1024}
    found, *_ = kernels("paged_attention", q, *caches, *ints, meta(8, 64, dtype=torch.int32), arch=arch, **options)
    return found.name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(("page_size", "dim"), [(16, 64), (64, 128), (1024, 128)])
def test_one_query_of_each_sequence_reads_whole_pages_on_hopper(page_size, dim, coded, dtype) -> None:
    cache = meta(100, page_size, 2, dim, dtype=FP8 if coded else dtype)
    assert name(meta(8, 8, dim, dtype=dtype), cache, cache) == "decode"


@pytest.mark.parametrize(
    ("heads", "cache", "more"),
    [
        (8, (100, 64, 2, 128), {"arch": "sm_100"}),
        (8, (100, 64, 2, 128), {"new": 2}),
        (64, (100, 64, 2, 128), {}),
        (8, (100, 48, 2, 128), {}),
        (8, (100, 64, 2, 96), {}),
        (8, (100, 64, 2, 256), {}),
    ],
    ids=str,
)
def test_what_the_kernel_of_slices_does_not_take_is_looked_up_key_by_key(heads, cache, more) -> None:
    tensors = meta(8 * more.get("new", 1), heads, cache[-1]), meta(*cache), meta(*cache)
    assert name(*tensors, **more) == "attend"


def test_so_are_keys_and_values_of_two_widths_and_overlapping_or_unaligned_ones() -> None:
    q, cache = meta(8, 8, 128), meta(100, 64, 2, 128)
    assert name(q, cache, meta(100, 64, 2, 64)) == "attend"
    one_head = meta(100, 64, 1, 128).expand(100, 64, 2, 128)
    assert name(q, one_head, one_head) == "attend"
    gapped = meta(100, 64, 2, 132)[..., :128]
    assert name(q, gapped, gapped) == "attend"


@pytest.mark.parametrize(
    ("room", "coded", "dim", "masked", "blocks", "keys", "expected"),
    [
        (4, False, 128, False, 512, 8192, (4, 1)),  # all run at once
        (4, False, 128, False, 64, 32768, (3, 6)),  # 384 of 396 places
        (4, False, 128, True, 512, 8192, (3, 3)),
        (3, False, 128, False, 512, 8192, (3, 3)),  # 1536 blocks in four rounds, not 512 in two
        (4, False, 64, True, 64, 32768, (4, 8)),
        (2, True, 128, False, 512, 8192, (2, 1)),
        (2, True, 128, False, 64, 32768, (2, 4)),
        (0, True, 128, False, 64, 32768, (0, 2)),  # what is left to the compiler counts as one
        (4, False, 128, False, 1, 255, (4, 1)),
    ],
)
def test_keys_are_split_so_that_few_places_of_the_last_round_are_empty(
    room, coded, dim, masked, blocks, keys, expected
) -> None:
    rooms = rooms_of(AttentionConfig(16, 32, occupancy=room), coded, dim, masked)
    found, parts = parts_of(*rooms, blocks, keys, 132)
    assert (found.occupancy, parts) == expected
