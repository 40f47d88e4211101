"""Configs of linear layers and their gradients on sm_90, by the portable and the Gluon kernels.

``python benchmarks/sweep_linear.py --out FILE.json [--only REGEX] [--dry]``; ``--help`` lists the rest. ``chosen`` is
the config of the heuristics.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

from opmux.bench.cases import MAKERS
from opmux.bench.data import Arguments, Data
from opmux.bench.shapes import Shape, product
from opmux.bench.sweep import main
from opmux.bench.variants import Case, Configured
from opmux.plugin import parse_arch
from opmux_triton.gemm import hopper_heuristics
from opmux_triton.gemm.configs import HopperBackwardConfig, HopperConfig, LinearConfig, TilesConfig, VectorConfig
from opmux_triton.gemm.vectors import columns, vector

SM_90 = parse_arch("sm_90")
ROWS = ((1, 8192, 4), (1, 8192, 8), (1, 4096, 4), (2, 4096, 8), (4, 2048, 8), (1, 16384, 8), (8, 512, 4), (1, 2048, 4))
"""For the product of one row: rows of the weight, columns at a time, warps."""

WEIGHTS = ((8192, 8192), (24576, 1536), (7168, 16384), (14336, 4096), (4096, 14336), (6144, 4096))
MODEL_WEIGHTS = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (32768, 2048))
"""n and k; those of ``model.py``: 1.1 billion parameters."""
FORWARD = (
    *((m, n, k) for m in (1, 16) for n, k in WEIGHTS),
    *((m, n, k) for m in (8, 16384) for n, k in MODEL_WEIGHTS),
    *((64, 8192, 8192), (128, 8192, 8192), (128, 24576, 1536), (128, 7168, 16384), (256, 8192, 8192)),
    *((512, 4096, 14336), (4096, 14336, 4096), (8192, 8192, 8192), (4096, 24576, 1536), (4096, 7168, 16384)),
)
BACKWARD = ((4096, 24576, 1536), (8192, 8192, 8192), *((8192, n, k) for n, k in MODEL_WEIGHTS))

Product = TilesConfig | HopperConfig


def tiles(m: int, base: TilesConfig) -> dict[str, TilesConfig]:
    """Configs of the portable kernels for a product of m rows."""

    def tile(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> TilesConfig:
        usual: dict[str, Any] = {"kind": "tiles", "flatten": True, "parts": 1, "swap": False, "per_unit": 1}
        blocks = {"block_m": block_m, "block_n": block_n, "block_k": block_k}
        return replace(base, **usual | blocks | {"num_warps": warps, "num_stages": stages, "cut_rest": False} | more)

    shares: dict[str, Any] = {"kind": "shares", "flatten": False, "swap": True}
    if m <= 16:
        return {
            "64x16 k256 s5": tile(64, 16, 256, 4, 5, swap=True),
            "64x16 k128 s5, 2 a unit": tile(64, 16, 128, 4, 5, swap=True, per_unit=2),
            "64x16 k128 s3, 3 a unit": tile(64, 16, 128, 4, 3, swap=True, per_unit=3),
            "64x16 k256 s5 shares": tile(64, 16, 256, 4, 5, **shares),
        }
    if m <= 64:
        return {f"128x64 k128 s4 w{w} shares": tile(128, 64, 128, w, 4, **shares) for w in (4, 8)}
    if m <= 128:
        return {
            "64x128 k64 s8": tile(64, 128, 64, 4, 8, swap=True),
            "64x128 k64 s4, 2 a unit": tile(64, 128, 64, 4, 4, swap=True, per_unit=2),
            "128x128 k64 s3, 2 a unit": tile(128, 128, 64, 4, 3, per_unit=2),
            "128x128 k64 s6": tile(128, 128, 64, 8, 6, parts=2),
        }
    return {
        "128x256 s4": tile(128, 256, 64, 8, 4, parts=2),
        "128x256 s4 cut": tile(128, 256, 64, 8, 4, parts=2, cut_rest=True),
        "128x256 s4 cut, two loops": tile(128, 256, 64, 8, 4, parts=2, cut_rest=True, flatten=False),
        "256x128 s4 cut": tile(256, 128, 64, 8, 4, swap=True, cut_rest=True, flatten=False),
        "128x128 s3, 2 a unit": tile(128, 128, 64, 4, 3, parts=2, per_unit=2),
        "128x128 s6": tile(128, 128, 64, 8, 6, parts=2),
        "128x128 k128 s3": tile(128, 128, 128, 8, 3, parts=2),
    }


def gluon(m: int, otherwise: TilesConfig) -> dict[str, HopperConfig]:
    """Configs of the Gluon kernel for a product of m rows."""

    def roles(block_m: int, block_n: int, block_k: int, stages: int, warpgroups: int, **more: Any) -> HopperConfig:
        return HopperConfig(block_m, block_n, block_k, stages, warpgroups, otherwise, **more)

    if m <= 128:
        swapped: dict[str, Any] = {"slots": 1, "swap": True}
        return {
            "gluon 64x128 k128 spin": roles(64, 128, 128, 4, 1, spin=True, **swapped),
            "gluon 64x128 cut": roles(64, 128, 64, 8, 1, cut="all", spin=True, **swapped),
            "gluon 128x128 cut": roles(128, 128, 64, 6, 2, cut="all", spin=True, **swapped),
            "gluon 256x128 cut": roles(256, 128, 64, 4, 2, cut="all", spin=True, **swapped),
        }
    if m <= 512:
        return {
            "gluon 128x128": roles(128, 128, 64, 6, 2, slots=1),
            "gluon 128x128 k128 spin": roles(128, 128, 128, 3, 2, slots=1, spin=True),
            "gluon 128x256 cut": roles(128, 256, 64, 4, 2, parts=4, cut="all", spin=True),
            "gluon 256x128 cut": roles(256, 128, 64, 4, 2, slots=1, cut="all", spin=True),
        }
    return {
        "gluon 128x256": roles(128, 256, 64, 4, 2, parts=4),
        "gluon 128x256, groups of 16": roles(128, 256, 64, 4, 2, parts=4, group=16),
        "gluon 128x256 cut": roles(128, 256, 64, 4, 2, parts=4, cut="rest"),
        "gluon 256x128": roles(256, 128, 64, 4, 2, slots=1),
        "gluon 128x128 in turn": roles(128, 128, 64, 6, 2, alternate=True, slots=1),
        "gluon 64x256 in turn": roles(64, 256, 64, 4, 2, alternate=True, parts=4),
        "gluon 192x128": roles(192, 128, 64, 5, 3, slots=1, group=4),
    }


def linear(m: int, n: int, k: int) -> Case:
    """`linear` with every config for its size."""
    variants: dict[str, Configured] = {}
    if m == 1:
        of_rows = {f"{r} x {b} w{w}": VectorConfig(rows=r, block_k=b, num_warps=w) for r, b, w in ROWS}
        for name, config in {"chosen": vector(SM_90, n, k), **of_rows}.items():
            variants[name] = Configured("triton", LinearConfig(vector=config))
        return Case("linear", product(m, n, k), variants)
    for name, config in products(m, n, k).items():
        of_tiles = isinstance(config, TilesConfig)
        variants[name] = (
            Configured("triton", LinearConfig(tiles=config)) if of_tiles else Configured("triton:hopper", config)
        )
    return Case("linear", product(m, n, k), variants)


def products(m: int, n: int, k: int) -> dict[str, Product]:
    """The chosen config first."""
    base = hopper_heuristics.portable(m, n, k)
    return {"chosen": hopper_heuristics.gluon(m, n, k) or base, **tiles(m, base), **gluon(m, base)}


def only(data: Data, shape: Shape, mask: tuple[bool, bool, bool]) -> Arguments:
    """`linear_backward` with the gradients of a mask."""
    return Arguments(MAKERS["linear_backward"](data, shape).tensors, {"output_mask": mask})


def backward(m: int, n: int, k: int, of: str) -> Case:
    """One product of `linear_backward` with every config for its size."""
    grad_x, grad_w = hopper_heuristics.portable(m, k, n), hopper_heuristics.portable(n, k, m)
    usual = HopperBackwardConfig(grad_x=grad_x, grad_w=grad_w, grad_bias=columns(SM_90))
    found = products(m, k, n) if of == "grad_x" else products(n, k, m)
    variants = {name: Configured("triton:hopper", replace(usual, **{of: config})) for name, config in found.items()}
    named = replace(product(m, n, k), name=f"{of}, m {m}, n {n}, k {k}")
    mask = (of == "grad_x", of == "grad_w", False)
    return Case("linear_backward", named, variants, make=partial(only, mask=mask))


CASES = [linear(*sizes) for sizes in FORWARD]
CASES += [backward(*sizes, of=of) for sizes in BACKWARD for of in ("grad_x", "grad_w")]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
