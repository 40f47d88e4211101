"""Configs of the memory-bound ops on sm_90: norms and their gradients, gates, rope, writes of the KV cache.

``python benchmarks/sweep_memory.py --out FILE.json [--only REGEX] [--compile] [--dry]``; ``--help`` lists the rest.
With few rows only ``chosen`` and the peers are measured.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opmux.bench.shapes import Shape, rows
from opmux.bench.sweep import main
from opmux.bench.variants import Case, Configured
from opmux.plugin import parse_arch
from opmux_triton.activation import configs as gates
from opmux_triton.kv_cache import configs as caches
from opmux_triton.norm import configs as norms
from opmux_triton.rope import configs as ropes

CONFIGS = {
    "rms_norm": norms.rms_config,
    "add_rms_norm": norms.added_config,
    "add_rms_norm_": norms.added_config,
    "layer_norm": norms.centred_config,
    "rms_norm_backward": norms.backward_config,
    "add_rms_norm_backward": norms.backward_config,
    "layer_norm_backward": norms.centred_backward_config,
    "silu_and_mul": gates.gated_config,
    "silu_mul": gates.gated_config,
    "gelu_mul": gates.gated_config,
    "silu_and_mul_backward": gates.gated_backward_config,
    "silu_mul_backward": gates.gated_backward_config,
    "gelu_mul_backward": gates.gated_backward_config,
    "apply_rope": ropes.rope_config,
    "apply_rope_": ropes.rope_config,
    "write_kv_cache": caches.write_config,
}
"""The heuristics of each op."""

Changes = tuple[dict[str, Any], ...]


def held(*sizes: tuple[int, int]) -> Changes:
    """For rows: columns at a time, warps."""
    return tuple({"block": block, "rows": 1, "num_warps": warps} for block, warps in sizes)


def tile(
    block: int, warps: int, programs: int, tail: int = 0, stages: int = 3, again: str = "", rows: int = 1,
    columns: int = 32,
) -> dict[str, Any]:  # fmt: skip
    """For a norm's gradients."""
    return {
        "block": block, "tail": tail, "rows": rows, "stages": stages, "again": again, "num_warps": warps,
        "programs": programs, "sum_columns": columns, "wide": None,
    }  # fmt: skip


def heads(*sizes: tuple[int, int, int]) -> Changes:
    """For rope: heads and tokens of a program, warps."""
    return tuple({"block_heads": h, "tokens": t, "num_warps": w} for h, t, w in sizes)


def writes(*sizes: tuple[int, int, bool]) -> Changes:
    """For a cache write: tokens of a program, warps, whether stores leave the L2 cache first."""
    return tuple({"block": 1024, "tokens": t, "num_warps": w, "stream": s} for t, w, s in sizes)


_GATES = held((512, 2), (1024, 2), (1024, 4), (2048, 8))
LARGE: dict[tuple[str, int, int], Changes] = {
    ("rms_norm", 1 << 20, 128): ({"block": 128, "rows": 16, "num_warps": 4},),
    ("rms_norm", 32768, 4096): held((4096, 4), (4096, 8), (2048, 8)),
    ("rms_norm", 26112, 5120): held((8192, 4), (8192, 8), (1024, 8)),
    ("rms_norm", 16384, 8192): held((8192, 8), (8192, 16), (4096, 16)),
    ("add_rms_norm", 32768, 4096): held((4096, 4), (4096, 16)),
    ("add_rms_norm", 16384, 8192): held((8192, 8), (8192, 32)),
    ("add_rms_norm_", 16384, 8192): (),
    ("layer_norm", 32768, 4096): held((4096, 8)),
    ("rms_norm_backward", 1 << 20, 128): (
        tile(128, 4, 4, rows=16, stages=1), tile(128, 4, 2, rows=16), tile(128, 2, 4, rows=8), tile(128, 4, 4, rows=32),
    ),
    ("rms_norm_backward", 65536, 2048): (
        tile(2048, 4, 4, stages=1), tile(2048, 4, 2), tile(2048, 2, 4), tile(2048, 4, 4, stages=4),
    ),
    ("rms_norm_backward", 32768, 4096): (tile(4096, 4, 2, columns=64), tile(4096, 8, 2)),
    ("rms_norm_backward", 26112, 5120): (
        tile(4096, 4, 2, 1024), tile(4096, 4, 2, 1024, 2), tile(4096, 4, 2, 1024, 4), tile(4096, 8, 1, 1024),
    ),
    ("rms_norm_backward", 16384, 8192): (tile(8192, 8, 1, columns=64), tile(8192, 16, 1)),
    ("rms_norm_backward", 10880, 12288): (
        tile(8192, 16, 1, 4096, 2, "weight"), tile(8192, 8, 1, 4096, 2), tile(16384, 16, 1, 0, 1, "all"),
    ),
    ("rms_norm_backward", 8192, 16384): (
        tile(16384, 16, 1, 0, 1, "all"), tile(16384, 32, 1, 0, 2, "weight"), tile(16384, 16, 1, 0, 2, "all"),
    ),
    ("add_rms_norm_backward", 32768, 4096): (tile(4096, 4, 2, stages=2), tile(4096, 8, 1, stages=4)),
    ("add_rms_norm_backward", 16384, 8192): (tile(8192, 8, 1, stages=2), tile(8192, 16, 1)),
    ("layer_norm_backward", 32768, 4096): (tile(4096, 8, 1), tile(4096, 8, 2)),
    ("layer_norm_backward", 26112, 5120): (
        tile(4096, 4, 2, 1024, 2), tile(4096, 8, 1, 1024, 4), tile(4096, 8, 2, 1024, 2, "weight"),
    ),
    ("layer_norm_backward", 16384, 8192): (tile(8192, 16, 1),),
    ("layer_norm_backward", 8192, 16384): (tile(16384, 16, 1, 0, 2, "all"), tile(16384, 16, 1, 0, 2, "weight")),
    ("silu_and_mul", 8192, 14336): (),
    ("silu_mul", 8192, 14336): (),
    ("gelu_mul", 8192, 14336): _GATES,
    ("silu_and_mul_backward", 8192, 14336): held((1024, 2)),
    ("silu_mul_backward", 8192, 14336): held((1024, 2), (2048, 8)),
    ("gelu_mul_backward", 8192, 14336): _GATES,
    ("apply_rope", 32768, 4096): heads((8, 1, 1)),
    ("apply_rope_", 32768, 4096): heads((8, 1, 2)),
    ("write_kv_cache", 65536, 4096): writes((2, 4, True), (1, 4, False), (2, 2, False), (4, 4, True), (8, 4, False)),
}  # fmt: skip
"""What differs from the chosen config, by op, tokens and width: at least 256 MB of traffic each."""
FEW = ("rms_norm", "add_rms_norm", "silu_mul", "silu_and_mul", "apply_rope")


def features(shape: Shape) -> Mapping[str, Any]:
    """What the heuristics read of a call."""
    dims = {"hidden": shape.hidden, "n": shape.intermediate, "heads": shape.heads, "kv_heads": shape.kv_heads}
    buckets = {"tokens": shape.tokens, "batch": 1, "seq": shape.tokens}
    return {
        **dims, "head_dim": shape.head_dim, "value_dim": shape.head_dim,
        **{f"bucket({name})": (n - 1).bit_length() for name, n in buckets.items()},
    }  # fmt: skip


def case(op: str, tokens: int, width: int, changes: Changes = ()) -> Case:
    """The chosen config, and every change of it, checked on fewer rows."""
    shape = rows(tokens, width)
    base: Any = CONFIGS[op](parse_arch("sm_90"), features(shape))
    variants = {"chosen": Configured("triton", base)}
    for change in changes:
        name = " ".join(f"{key} {value}" for key, value in change.items() if value not in ("", 0, None))
        variants[name] = Configured("triton", replace(base, **change))
    return Case(op, shape, variants, checked=rows(min(tokens, 300), width))


CASES = [case(*sizes, changes) for sizes, changes in LARGE.items()]
CASES += [case(op, tokens, width) for op in FEW for width in (4096, 8192) for tokens in (1, 16, 128)]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
