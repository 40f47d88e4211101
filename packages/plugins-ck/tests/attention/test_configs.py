"""The rules of a tile of attention, with their reasons, and the tile that a call gets."""

from dataclasses import replace

import pytest

from opmux.plugin import parse_arch
from opmux_ck.attention.choice import (
    FEW_QUERIES,
    MANY_QUERIES,
    SPACE,
    attention_config,
    attention_space,
)
from opmux_ck.attention.configs import HEADS, AttentionConfig, broken_rules, misfit

GFX942 = parse_arch("gfx942")
TILE = MANY_QUERIES[128]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"keys": 0}, "queries, keys, dim_step, key_step and waves = 128, 0, 32, 32, 4: one is less than 1"),
        ({"mfma": 4, "queries": 16}, "mfma = 4 is not 16 or 32"),
        ({"waves": 9, "queries": 288}, "waves = 9 is more than 8"),
        ({"queries": 64}, "queries = 64 is not waves * mfma = 128"),
        ({"keys": 80, "key_step": 16}, "keys = 80 is not a multiple of mfma = 32"),
        ({"key_step": 48}, "keys = 128 is not a multiple of key_step = 48"),
        ({"dim_step": 24}, "dim_step = 24 is not a multiple of 16, which a wave multiplies at a time"),
        ({"key_step": 8}, "key_step = 8 is not a multiple of 16, which a wave multiplies at a time"),
        (
            {"keys": 32, "dim_step": 16},
            "keys * dim_step = 512 is not a multiple of 4 elements for each of 256 threads",
        ),
    ],
)
def test_what_no_instance_can_be(fields, reason) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        replace(TILE, **fields)
    assert str(caught.value) == reason


def test_a_legal_tile_breaks_no_rule() -> None:
    assert list(broken_rules(TILE)) == []


@pytest.mark.parametrize(
    ("config", "heads", "reason"),
    [
        (TILE, (128, 128), None),
        (TILE, (32, 128), "head_dim = 32 is not at least two steps of 32"),
        (TILE, (128, 80), "value_dim = 80 is not a multiple of mfma = 32"),
        (
            replace(TILE, key_step=16),
            (128, 32),
            "value_dim * key_step = 512 is not a multiple of 4 elements for each of 256 threads",
        ),
        (replace(TILE, keys=1024, key_step=1024), (128, 128), "a step takes more than 65536 bytes of LDS"),
        (replace(TILE, keys=512), (128, 128), "a thread has 320 sums, more than 256"),
        (FEW_QUERIES[256], (256, 256), None),
        (
            FEW_QUERIES[128],
            (256, 256),
            "a step of keys * dim_step takes a wave 4 matrix instructions: for heads of 256 CK orders 8 at a time",
        ),
    ],
)
def test_what_does_not_fit_heads(config, heads, reason) -> None:
    assert misfit(config, *heads) == reason


@pytest.mark.parametrize("queries", [1, 16, 17, 4096])
@pytest.mark.parametrize("heads", HEADS)
def test_what_a_call_gets_fits(heads, queries) -> None:
    features = {"bucket(seq_q)": (queries - 1).bit_length(), "head_dim": heads[0], "value_dim": heads[1]}
    found = attention_config(GFX942, features)
    assert found == (FEW_QUERIES if queries <= 16 else MANY_QUERIES)[heads[0]]
    space = list(attention_space(GFX942, features))
    assert misfit(found, *heads) is None
    assert space
    assert all(misfit(one, *heads) is None for one in space)


def test_the_space_repeats_no_tile() -> None:
    assert len(set(SPACE)) == len(SPACE)
    assert all(isinstance(one, AttentionConfig) for one in SPACE)
