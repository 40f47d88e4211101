"""Launch parameters of attention's forward."""

from collections.abc import Callable
from typing import Any

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, shared_memory, wave_size
from opmux_triton.arithmetic import padded
from opmux_triton.attention.forward import configs

DIMS = (1, 8, 64, 80, 128, 192, 256)


@pytest.mark.parametrize("name", PORTABLE)
@pytest.mark.parametrize(("config", "itemsize"), [(configs.forward_config, 2), (configs.float32_config, 4)])
def test_blocks_fit_into_shared_memory(name: str, config: Callable[..., configs.ForwardConfig], itemsize: int) -> None:
    for head_dim in DIMS:
        made = config(parse_arch(name), {"head_dim": head_dim, "value_dim": 64})
        head, value = padded(head_dim), padded(64)
        held = (made.block * (head + value) * made.num_stages + made.rows * head) * itemsize
        assert held <= shared_memory(name), head_dim
        assert made.num_warps * wave_size(name) <= 1024


def test_few_queries_take_few_rows() -> None:
    def rows(bucket: int) -> int:
        return configs.forward_config(
            parse_arch("sm_80"), {"head_dim": 64, "value_dim": 64, "bucket(seq_q)": bucket}
        ).rows

    assert [rows(bucket) for bucket in (0, 4, 5, 6, 7, 12)] == [16, 16, 32, 64, 128, 128]


def test_narrow_heads_have_a_third_warpgroup_on_sm_90() -> None:
    hopper: Any = parse_arch("sm_90")
    narrow, wide = (configs.hopper_config(hopper, {"head_dim": d, "value_dim": d}) for d in (64, 128))
    assert (narrow.warpgroups, narrow.narrow, narrow.stages) == (3, 2, 3)
    assert (wide.warpgroups, wide.narrow, wide.stages) == (2, 2, 2)


def test_other_numbers_of_warpgroups_are_refused() -> None:
    made = configs.hopper_config(parse_arch("sm_90"), {"head_dim": 64, "value_dim": 64})
    with pytest.raises(ValueError, match=r"^warpgroups and narrow expected 2 or 3, got 4 and 2$"):
        configs.HopperConfig(**{**vars(made), "warpgroups": 4})
