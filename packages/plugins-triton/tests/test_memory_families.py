"""The memory-bound families: how rows are folded, what the heuristics give, and kernels beyond the small cases."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opmux.arch import parse_arch
from opmux_triton.activation import configs as gates
from opmux_triton.kv_cache import configs as caches
from opmux_triton.norm import configs as norms
from opmux_triton.rope import configs as ropes
from opmux_triton.rows import parts

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201")
WIDTHS = (1, 7, 64, 128, 1000, 2880, 4096, 5120, 8192, 14336, 28672, 100_000)
TOKENS = tuple(range(0, 24, 3))


def test_interpreted_kernels_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("interpreted_memory.py")


def test_contiguous_rows_are_one_part_with_one_stride() -> None:
    ((rows, tensors),) = parts((torch.empty(2, 3, 8),))
    assert rows == (6, None, (8,), (None,))
    assert len(tensors) == 1


def test_rows_of_a_slice_have_two_strides() -> None:
    x = torch.empty(2, 5, 16)[:, :3, :8]
    ((rows, _),) = parts((x, torch.empty(2, 3, 8)))
    assert rows == (6, 3, (16, 8), (80, 24))


def test_what_folds_in_one_tensor_only_is_not_folded() -> None:
    x, y = torch.empty(2, 3, 8), torch.empty(3, 2, 8).transpose(0, 1)
    ((rows, _),) = parts((x, y))
    assert rows == (6, 3, (8, 16), (24, 8))


def test_three_strides_are_several_parts_that_cover_everything() -> None:
    x, y = torch.zeros(4, 6, 10, 8)[::2, ::2, ::2], torch.zeros(2, 3, 5, 8)
    seen = 0
    for rows, (part, result) in parts((x,), (y,)):
        assert rows.total == result.numel() // 8
        part += 1
        result += 1
        seen += rows.total
    assert seen == 30
    assert bool((x == 1).all())
    assert bool((y == 1).all())


def test_a_single_row_is_a_part() -> None:
    ((rows, _),) = parts((torch.empty(8),))
    assert rows == (1, None, (0,), (None,))


@pytest.mark.parametrize("arch", ARCHS)
def test_heuristics_keep_to_what_an_arch_has(arch: str) -> None:
    where = parse_arch(arch)
    threads = 64 if arch.startswith("gfx9") else 32
    made: list[Any] = []
    for width in WIDTHS:
        for back in (norms.backward_config, norms.centred_backward_config):
            made.append(back(where, {"hidden": width}))
            held = made[-1].block + made[-1].tail
            assert made[-1].tail == 0 or width <= held < 2 * width
        for bucket in TOKENS:
            for rows in (norms.rms_config, norms.centred_config, norms.added_config):
                made.append(rows(where, {"hidden": width, "bucket(tokens)": bucket}))
            made.append(gates.gated_config(where, {"n": width, "bucket(tokens)": bucket}))
            made.append(gates.gated_backward_config(where, {"n": width, "bucket(tokens)": bucket}))
            cache = {"kv_heads": 3, "head_dim": width, "value_dim": 64, "bucket(tokens)": bucket}
            made.append(caches.write_config(where, cache))
            heads = {"heads": 5, "kv_heads": 1, "head_dim": width, "bucket(batch)": 0, "bucket(seq)": bucket}
            made.append(ropes.rope_config(where, heads))
    for config in made:  # that sizes are powers of two, the configs check themselves
        assert config.num_warps * threads <= 1024


def test_long_rows_are_read_twice_where_there_is_much_data() -> None:
    nvidia, amd = parse_arch("sm_90"), parse_arch("gfx942")
    much, little = ({"hidden": 4096, "bucket(tokens)": bucket} for bucket in (15, 4))
    assert norms.rms_config(nvidia, much) == norms.RowsConfig(block=1024, rows=1, num_warps=8)
    assert norms.rms_config(nvidia, little).block == 4096
    assert norms.rms_config(amd, much).block == 4096
    assert norms.added_config(nvidia, much).block == 4096
    assert norms.centred_config(nvidia, much) == norms.RowsConfig(block=2048, rows=1, num_warps=4)
    assert norms.centred_config(nvidia, much | {"hidden": 1 << 20}) == norms.RowsConfig(4096, 1, 16)
    assert norms.centred_config(nvidia, little).block == 4096
    assert norms.centred_config(amd, much).block == 4096
