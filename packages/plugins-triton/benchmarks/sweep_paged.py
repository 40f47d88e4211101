"""Configs of paged attention on sm_90: of decoding, and of prefill by the portable and the Gluon kernels.

``python benchmarks/sweep_paged.py --out FILE.json [--only REGEX] [--dry]``; ``--help`` lists the rest.
"""

import sys
from dataclasses import replace

from opmux.bench.shapes import Shape, paged
from opmux.bench.sweep import main
from opmux.bench.variants import Case, Configured
from opmux.plugin import parse_arch
from opmux_triton.paged.configs import halves_config, hopper_config

SM_90 = parse_arch("sm_90")
PAGES = (16, 64)
DECODE = ((64, 8192), (1, 131072), (256, 1024), (1, 1024), (8, 2048), (64, 1024))
"""Sequences, and tokens of each."""
PREFILL = ((4096, 8192), (4096, 4096))
"""New tokens of one sequence, and all of them."""

PATHS = (
    (64, 4, 4, 8), (64, 4, 4, 2), (64, 4, 3, 4), (64, 4, 3, 8), (64, 2, 3, 8), (64, 8, 3, 4), (32, 4, 4, 4),
    (32, 4, 6, 4), (128, 4, 2, 4), (128, 8, 2, 4),
)  # fmt: skip
"""For decoding: keys of a block, warps, stages, programs for each unit."""
TILES = ((128, 64, 8, 3), (64, 64, 4, 3))
"""For the portable prefill: rows, keys of a block, warps, stages."""
ROLES = ((3, 1, 4), (3, 1, 1), (2, 2, 1), (2, 2, 2))
"""For the Gluon prefill: stages of keys and values, places for queries, warps that load."""


def features(shape: Shape) -> dict[str, int]:
    """What the heuristics read of a call."""
    dims = {"head_dim": shape.head_dim, "value_dim": shape.head_dim, "page_size": shape.page_size}
    return {**dims, "bucket(batch)": (shape.batch - 1).bit_length()}


def decode(batch: int, context: int, page_size: int) -> Case:
    """One new token of each sequence."""
    shape = paged(batch, 1, context, page_size)
    base = halves_config(SM_90, features(shape))
    variants = {"chosen": Configured("triton", base)}
    for block, warps, stages, programs in PATHS:
        path = replace(base.decode, block_n=block, num_warps=warps, num_stages=stages, programs=programs)
        name = f"n{block} w{warps} s{stages} p{programs}"
        variants[name] = Configured("triton", replace(base, decode=path))
    return Case("paged_attention", shape, variants)


def prefill(new: int, context: int, page_size: int) -> Case:
    """A chunk of new tokens of one sequence."""
    shape = paged(1, new, context, page_size)
    portable, gluon = halves_config(SM_90, features(shape)), hopper_config(SM_90, features(shape))
    variants = {"chosen": Configured("triton:hopper", gluon), "portable chosen": Configured("triton", portable)}
    for rows, block, warps, stages in TILES:
        path = replace(portable.prefill, rows=rows, block_n=block, num_warps=warps, num_stages=stages)
        name = f"portable {rows}x{block} w{warps} s{stages}"
        variants[name] = Configured("triton", replace(portable, prefill=path))
    for stages, slots, loaders in ROLES:
        # A single loading warp needs more registers.
        registers, loading = (224, 56) if loaders == 1 else (232, 40)
        roles = replace(
            gluon.hopper, stages=stages, slots=slots, loaders=loaders, registers=registers, loading_registers=loading
        )
        name = f"gluon s{stages}, {slots} places, {loaders} loading"
        variants[name] = Configured("triton:hopper", replace(gluon, hopper=roles))
    return Case("paged_attention", shape, variants, checked=paged(1, 517, 1029, page_size))


CASES = [decode(*sizes, page_size) for sizes in DECODE for page_size in PAGES]
CASES += [prefill(*sizes, page_size) for sizes in PREFILL for page_size in PAGES]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
