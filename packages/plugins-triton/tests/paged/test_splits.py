"""How the keys of a tile are cut: by the reach, the tiles, and the units of the device."""

import pytest

from opmux.arch import parse_arch
from opmux_triton.paged import configs
from opmux_triton.paged.targets import Pass, short_reach, splits_of

UNITS = 132


def splits(batch: int, kv_heads: int, reach: int, *, halves: bool = True, path: str = "decode") -> tuple[int, int]:
    """Those of a call on an H200, with heads of 128 columns."""
    features = {"page_size": 16, "head_dim": 128, "value_dim": 128, "bucket(batch)": (batch - 1).bit_length()}
    config = configs.halves_config(parse_arch("sm_90"), features)
    one = Pass(path, 16, batch, False, 0, 1, True)
    return splits_of(config.decode if path == "decode" else config.prefill, one, kv_heads, reach, UNITS, halves)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "reach", "expected"),
    [
        (1, 4, 400, (7, 1)), (1, 8, 400, (7, 1)), (1, 8, 1024, (16, 1)), (4, 8, 400, (4, 1)), (2, 8, 400, (7, 1)),
        (1, 4, 256, (1, 1)), (1, 4, 257, (5, 1)),  # a single split needs no second kernel
        (8, 8, 400, (2, 1)), (16, 8, 400, (2, 4)), (32, 8, 4096, (2, 4)),  # a program for each unit, or more
        (1, 8, 131072, (33, 4)), (4, 8, 4096, (16, 4)),  # 256 keys and more are as many programs
    ],
)  # fmt: skip
def test_few_short_sequences_are_cut_into_blocks(
    batch: int, kv_heads: int, reach: int, expected: tuple[int, int]
) -> None:
    assert splits(batch, kv_heads, reach) == expected


def test_other_caches_and_prefill_keep_longer_splits() -> None:
    assert splits(1, 4, 400, halves=False) == (2, 4)
    assert splits(1, 4, 4096, path="prefill") == (4, 16)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (1, 4), (1, 8), (4, 8), (8, 8), (32, 8)])
def test_what_a_kept_launch_knows_of_the_reach_decides_its_splits(batch: int, kv_heads: int) -> None:
    features = {"page_size": 16, "head_dim": 128, "value_dim": 128, "bucket(batch)": (batch - 1).bit_length()}
    decode = configs.halves_config(parse_arch("sm_90"), features).decode
    found: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for reach in range(1, 16384, 7):
        known = -(-reach // decode.least), short_reach(decode, reach, batch * kv_heads)
        found.setdefault(known, set()).add(splits(batch, kv_heads, reach))
    assert [made for made in found.values() if len(made) > 1] == []
    assert len(found) <= 64 + 512 // (batch * kv_heads)
