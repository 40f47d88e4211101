"""Launch parameters of paged attention."""

from collections.abc import Callable

import pytest

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, shared_memory, wave_size
from opmux_triton.arithmetic import padded
from opmux_triton.paged import configs


@pytest.mark.parametrize("name", PORTABLE)
@pytest.mark.parametrize(("config", "itemsize"), [(configs.halves_config, 2), (configs.float32_config, 4)])
def test_blocks_fit_into_shared_memory(name: str, config: Callable[..., configs.PagedConfig], itemsize: int) -> None:
    for dim in (16, 64, 128, 256):
        for batch in (0, 1, 6):
            features = {"page_size": 16, "head_dim": dim, "value_dim": dim, "bucket(batch)": batch}
            made = config(parse_arch(name), features)
            for path in (made.decode, made.prefill):
                waiting = (path.num_stages - 1) * path.block_n * 2 * padded(dim) * itemsize
                assert waiting <= shared_memory(name)
                assert path.num_warps * wave_size(name) <= 1024
