"""Gradients of attention: which kernels are launched, in which tiles, and what the compiler makes of them."""

import pytest
import torch
from cubins import compiled, kernels, layout, meta

from opmux.plugin import parse_arch
from opmux_cutile.attention import backward
from opmux_cutile.attention.backward_configs import (
    PAIRED,
    AttentionBackwardConfig,
    attention_backward_config,
    attention_backward_space,
)
from opmux_cutile.attention.configs import AttentionConfig
from opmux_cutile.launching import recording

FP32 = torch.float32
MASKS = {
    (True, True, True, True): ["statistics", "keys_dense", "queries_dense"],
    (True, False, False, False): ["statistics", "queries_dense"],
    (False, True, False, False): ["statistics", "keys_dense"],
    (False, False, False, True): ["statistics"],
}


def given(queries: int, keys: int, heads: int, kv_heads: int, dim: int, sinks: bool = False) -> list:
    """Tensors without memory."""
    q, k = meta(2, queries, heads, dim), meta(2, keys, kv_heads, dim)
    logits = meta(heads, dtype=FP32) if sinks else None
    return [q, q, k, k, q, meta(2, heads, queries, dtype=FP32), logits, None]


@pytest.mark.parametrize("mask", MASKS)
def test_only_what_is_wanted_is_computed(mask) -> None:
    wanted = kernels("attention_backward", *given(96, 64, 4, 2, 64, sinks=True), output_mask=mask)
    assert [kernel.name for kernel in wanted] == MASKS[mask]


def test_wide_heads_have_their_keys_and_values_apart() -> None:
    wanted = kernels("attention_backward", *given(96, 64, 4, 2, 256))
    assert [kernel.name for kernel in wanted] == ["statistics", "keys_dense", "keys_dense", "queries_dense"]
    assert [[p.value for p in kernel.parameters[-2:]] for kernel in wanted[1:3]] == [[True, False], [False, True]]


def test_without_keys_gradients_of_queries_are_zero() -> None:
    q, k, lse = torch.ones(1, 3, 2, 16).bfloat16(), torch.ones(1, 0, 2, 16).bfloat16(), torch.zeros(1, 2, 3)
    config = attention_backward_config(parse_arch("sm_90"), {"head_dim": 16, "value_dim": 16})
    scoring = {"scale": None, "causal": False, "window": (-1, -1), "softcap": 0.0}
    with recording() as launches:
        found = backward.attention_backward(
            q, q, k, k, q, lse, None, None, output_mask=(True,) * 4, config=config, **scoring
        )
    assert [kernel.name for kernel, *_ in launches] == ["statistics"]
    assert not found[0].any()
    assert [tuple(t.shape) for t in found[1:]] == [(1, 0, 2, 16), (1, 0, 2, 16), (0,)]


def test_tiles_have_a_width_of_some_columns() -> None:
    tile = AttentionConfig(32, 32, 4)
    with pytest.raises(ValueError, match=r"^columns expected 0, 16, 32, 64, 128 or 256, got 48$"):
        AttentionBackwardConfig(tile, tile, tile, columns=48)


@pytest.mark.parametrize("name", ["sm_90", "sm_120"])
@pytest.mark.parametrize("dim", [40, 64, 128, 256])
def test_the_space_has_the_choice(dim, name) -> None:
    features, arch = {"head_dim": dim, "value_dim": dim}, parse_arch(name)
    found = list(attention_backward_space(arch, features))
    assert found[0] == attention_backward_config(arch, features)
    assert len(set(found)) == len(found) > 3


@pytest.mark.parametrize(("dim", "queries"), [(64, PAIRED), (128, AttentionConfig(128, 64, 8))])
def test_two_blocks_fit_a_hopper_multiprocessor(dim, queries) -> None:
    features = {"head_dim": dim, "value_dim": dim}
    found = attention_backward_config(parse_arch("sm_90"), features)
    assert (found.of_keys, found.of_queries) == (PAIRED, queries)
    assert PAIRED not in (attention_backward_config(parse_arch("sm_100"), features).of_keys, found.of_keys_capped)


@pytest.mark.parametrize(("arch", "instruction"), [("sm_90", "HGMMA"), ("sm_100", "UTCHMMA"), ("sm_120", "HMMA")])
@pytest.mark.parametrize("options", [{"causal": True}, {"softcap": 5.0, "window": (9, 9)}], ids=["causal", "capped"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_gradients_use_the_matrix_units_and_no_local_memory(arch, instruction, options, dim, tmp_path) -> None:
    for wanted in kernels("attention_backward", *given(512, 512, 4, 2, dim), arch=arch, **options):
        found = compiled(wanted, arch, tmp_path)
        assert found.parameters == layout(wanted.letters)
        assert (found.local, found.count("LDL"), found.count("STL")) == (0, 0, 0), wanted
        if wanted.name != "statistics":
            assert found.count(instruction) > 0
            assert found.count("UTMALDG") > 0
