"""What is launched to write into a key/value cache."""

import torch
from planted_launches import made

from opmux_triton.kv_cache import targets
from opmux_triton.kv_cache.configs import WriteConfig
from opmux_triton.launch import recording

CONFIG = WriteConfig(block=256, tokens=4, stream=False, num_warps=4)


def write(tokens: int, layout: str) -> list[tuple[int, ...]]:
    shape = (8, 16, 2, 64) if layout == "nhd" else (8, 2, 16, 64)
    k, cache = made(tokens, 2, 64), made(*shape)
    slots = torch.empty(tokens, dtype=torch.int64, device="meta")
    with recording("sm_90") as recorded:
        targets.write_kv_cache(k, k, cache, cache, slots, layout=layout, config=CONFIG)
    return [launch.grid for launch in recorded.launches]


def test_both_layouts_are_one_launch_over_the_tokens() -> None:
    assert write(10, "nhd") == write(10, "hnd")
    (grid,) = write(10, "nhd")
    assert grid[0] >= 3


def test_without_tokens_nothing_is_launched() -> None:
    assert write(0, "nhd") == []
