"""Launch parameters of paged attention."""

from collections.abc import Callable

import pytest
import torch

from opmux.plugin import parse_arch
from opmux_triton.archs import PORTABLE, shared_memory, wave_size
from opmux_triton.arithmetic import padded
from opmux_triton.launch import recording
from opmux_triton.paged import configs, targets


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


@pytest.mark.parametrize(("head_dim", "programs", "keys"), [(64, 2, 128), (128, 3, 32), (256, 2, 32)])
def test_shares_have_bytes_of_a_row_in_flight(head_dim: int, programs: int, keys: int) -> None:
    features = {"page_size": 16, "head_dim": head_dim, "value_dim": head_dim, "bucket(batch)": 3}
    made = configs.halves_config(parse_arch("sm_90"), features).shares
    assert made is not None
    assert (made.programs, made.block_n) == (programs, keys)
    coded = configs.codes_config(parse_arch("sm_90"), features).shares
    assert coded is not None
    assert (coded.programs, coded.block_n) == {64: (4, 64), 128: (2, 128), 256: (2, 64)}[head_dim]
    elsewhere = configs.codes_config(parse_arch("sm_100"), features).shares
    assert elsewhere is not None
    assert (elsewhere.programs, elsewhere.block_n) == (2, {64: 256, 128: 128, 256: 64}[head_dim])


@pytest.mark.parametrize(("head_dim", "stages", "programs"), [(64, 4, 4), (128, 3, 3), (256, 3, 2)])
@pytest.mark.parametrize("batch", [0, 3])
def test_splits_of_codes_are_as_many_as_run_at_a_time(head_dim: int, stages: int, programs: int, batch: int) -> None:
    features = {"page_size": 16, "head_dim": head_dim, "value_dim": head_dim, "bucket(batch)": batch}
    made = configs.codes_config(parse_arch("sm_90"), features).decode
    assert (made.num_stages, made.programs) == (stages, programs)


def test_several_kv_heads_of_codes_are_cut_into_shares_where_sequences_are_long() -> None:
    features = {"page_size": 16, "head_dim": 128, "value_dim": 128, "bucket(batch)": 3}
    shares = configs.codes_config(parse_arch("sm_90"), features).shares
    assert shares is not None
    for tiles, batch, reach, taken in (
        (8, 17, 2560, True), (8, 17, 2559, False),  # tiles for all units
        (8, 16, 16384, True), (8, 16, 16383, False),  # fewer
        (8, 132, 16384, True), (8, 133, 16384, False),  # so many that sequences are better left whole
        (9, 1, 1 << 20, False), (2, 100, 1024, True), (2, 100, 1023, False),
    ):  # fmt: skip
        assert shares.takes(tiles, batch, reach, 132) is taken
    others = (
        configs.halves_config(parse_arch("sm_90"), features),
        configs.codes_config(parse_arch("sm_100"), features),
    )
    for other in others:
        assert other.shares is not None
        assert not other.shares.takes(8, 16, 1 << 20, 132)


def test_tall_tiles_take_half_of_a_large_block_alone() -> None:
    for head_dim, keys in ((64, 64), (128, 32), (256, 16)):
        config = configs.halves_config(
            parse_arch("sm_90"), {"page_size": 16, "head_dim": head_dim, "value_dim": head_dim, "bucket(batch)": 3}
        )
        cache = torch.empty(2048, 16, 1, head_dim, dtype=torch.bfloat16, device="meta")
        rows = [cache.new_empty(shape, dtype=torch.int32) for shape in ((9,), (8,), (8, 256))]
        options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
        with recording("sm_90") as noted:
            targets.paged_attention(
                cache.new_empty(8, 20, head_dim), cache, cache, *rows, None, config=config, max_seqlen_q=1,
                max_seqlen_k=4096, **options,
            )  # fmt: skip
        assert noted.launches[0].meta["BLOCK_N"] == keys
