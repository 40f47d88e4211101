"""Configs of attention's forward on sm_90, by the portable and the Gluon kernels.

``python benchmarks/sweep_attention_forward.py --out FILE.json [--only REGEX] [--dry]``; ``--help`` lists the rest.
"""

import sys
from dataclasses import replace
from typing import Any

from opmux.bench.shapes import attention
from opmux.bench.sweep import main
from opmux.bench.variants import Case, Configured
from opmux.plugin import parse_arch
from opmux_triton.attention.forward.configs import forward_config, hopper_config

SHAPES = (
    (2, 4096, 32, 32, 64),
    (8, 2048, 32, 8, 64),
    (4, 4096, 32, 8, 128),
    (1, 16384, 32, 8, 128),
    (23, 435, 64, 8, 80),
    (2, 8192, 24, 8, 96),
    (2, 4096, 16, 16, 192),
    (2, 4096, 16, 16, 256),
)
"""(batch, seq, heads, kv_heads, head_dim)."""
CHECKED = (2, 1029, 4, 2)
"""(batch, seq, heads, kv_heads) where results are checked: an odd length, several programs."""
ALL = 1 << 50
"""Bytes of keys and values: all at a time."""

PORTABLE: dict[str, dict[str, Any]] = {
    "portable 64x64 w4 s3": {"rows": 64, "block": 64, "num_warps": 4, "num_stages": 3},
    "portable 64x128 w4 s3": {"rows": 64, "block": 128, "num_warps": 4, "num_stages": 3},
}
GLUON: dict[int, dict[str, dict[str, Any]]] = {
    64: {
        "128x128 s2": {"warpgroups": 2, "stages": 2},
        "128x128 s3": {"warpgroups": 2, "stages": 3},
        "128x128 s3 in turns": {"warpgroups": 2, "stages": 3, "turns": True},
        "192x128 s2": {"warpgroups": 3, "stages": 2},
        "192x128 s3 in turns": {"warpgroups": 3, "stages": 3, "turns": True},
        "192x128 s3 by tiles": {"warpgroups": 3, "stages": 3, "persistent": False},
        "192x128 s3 all keys": {"warpgroups": 3, "stages": 3, "cache": ALL},
        "192x64 s4 in turns": {"warpgroups": 3, "block": 64, "stages": 4, "turns": True},
    },
    128: {
        "128x128 s2 in turns": {"warpgroups": 2, "stages": 2, "turns": True},
        "128x128 s2 by tiles": {"warpgroups": 2, "stages": 2, "persistent": False},
        "128x128 s2 all keys": {"warpgroups": 2, "stages": 2, "cache": ALL},
    },
    **{
        head_dim: {
            "128x128 s2": {"turns": False},
            "128x128 s3, one tile of queries": {"stages": 3, "slots": 1},
            "128x64 s4": {"block": 64, "stages": 4},
        }
        for head_dim in (80, 96)
    },
    192: {
        "128x64 s2": {"turns": False},
        "128x64 s3, one tile of queries": {"stages": 3, "slots": 1},
        "128x64 s2 by tiles": {"persistent": False},
    },
    256: {
        "128x64 s2 in turns": {"turns": True},
        "128x64 s2 by tiles": {"persistent": False},
    },
}


def case(op: str, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> Case:
    """One shape with every config for its head size."""
    arch = parse_arch("sm_90")
    features = {"head_dim": head_dim, "value_dim": head_dim, "bucket(seq_q)": (seq - 1).bit_length()}
    portable, gluon = forward_config(arch, features), hopper_config(arch, features)
    variants = {
        "chosen": Configured("triton:hopper", gluon),
        "portable chosen": Configured("triton", portable),
        **{name: Configured("triton", replace(portable, **change)) for name, change in PORTABLE.items()},
        **{
            f"gluon {name}": Configured("triton:hopper", replace(gluon, **change))
            for name, change in GLUON[head_dim].items()
        },
    }
    shape = attention(batch, seq, heads, kv_heads, head_dim, causal)
    return Case(op, shape, variants, checked=attention(*CHECKED, head_dim, causal))


CASES = [
    case(op, *sizes, causal=causal)
    for op in ("attention", "attention_lse")
    for sizes in SHAPES
    for causal in (True, False)
]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
