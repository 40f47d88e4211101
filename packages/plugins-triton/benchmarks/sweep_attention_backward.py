"""Configs of attention's backward on sm_90, by the portable kernels, each with other tiles, and by the Gluon kernel.

``python benchmarks/sweep_attention_backward.py --out FILE.json [--only REGEX] [--dry]``; ``--help`` lists the rest.
"""

import sys
from dataclasses import replace
from typing import Any

from opmux.bench.shapes import attention
from opmux.bench.sweep import main
from opmux.bench.variants import Case, Configured
from opmux.plugin import parse_arch
from opmux_triton.attention.backward.configs import backward_config, hopper_config

SHAPES = ((4, 4096, 32, 8, 128), (2, 4096, 32, 32, 64), (1, 16384, 32, 8, 128))
"""(batch, seq, heads, kv_heads, head_dim)."""
CHECKED = (2, 517, 4, 2)
"""(batch, seq, heads, kv_heads) where results are checked: an odd length, several programs."""

TILES: dict[int, dict[str, tuple[tuple[int, int, int, int], ...]]] = {
    64: {
        "keys_values": ((64, 128, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (32, 64, 4, 3)),
        "queries": ((128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3), (128, 128, 8, 2)),
    },
    128: {
        "keys_values": ((32, 64, 4, 2), (64, 64, 8, 2), (32, 128, 8, 2)),
        "queries": ((128, 64, 8, 2), (64, 64, 4, 3), (128, 32, 8, 3)),
    },
}
"""For each portable kernel: queries and keys of a tile, warps, stages."""
GLUON: dict[int, dict[str, dict[str, Any]]] = {
    64: {
        "gluon bulk": {"bulk": True},
        "gluon not late": {"late": False},
        "gluon all together": {"together": 0},
        "gluon 4 together": {"together": 4},
    },
    128: {
        "gluon bulk": {"bulk": True},
        "gluon late": {"late": True},
        "gluon all together": {"together": 0},
        "gluon late, 8 together": {"late": True, "together": 8},
    },
}


def case(batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> Case:
    """One shape with every config for its head size."""
    arch = parse_arch("sm_90")
    features = {"head_dim": head_dim, "value_dim": head_dim, "bucket(seq_q)": (seq - 1).bit_length()}
    portable, gluon = backward_config(arch, features), hopper_config(arch, features)
    variants = {"chosen": Configured("triton:hopper", gluon), "portable chosen": Configured("triton", portable)}
    for kernel, launches in TILES[head_dim].items():
        for block_m, block_n, warps, stages in launches:
            sizes = {"block_m": block_m, "block_n": block_n, "num_warps": warps, "num_stages": stages}
            config = replace(portable, **{kernel: replace(getattr(portable, kernel), **sizes)})
            variants[f"{kernel} {block_m}x{block_n} w{warps} s{stages}"] = Configured("triton", config)
    for name, change in GLUON[head_dim].items():
        variants[name] = Configured("triton:hopper", replace(gluon, **change))
    shape = attention(batch, seq, heads, kv_heads, head_dim, causal)
    return Case("attention_backward", shape, variants, checked=attention(*CHECKED, head_dim, causal))


CASES = [case(*sizes, causal=causal) for sizes in SHAPES for causal in (True, False)]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
