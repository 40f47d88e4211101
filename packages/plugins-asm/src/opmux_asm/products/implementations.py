"""The records of the products."""

from opmux.plugin import (
    Aligned,
    AtMost,
    Bucket,
    Constraint,
    Dtype,
    Exact,
    FeatureRule,
    Implementation,
    MultipleOf,
    ScaleBlock,
    UnitStride,
)
from opmux_asm.archs import ARCHS, FP8, UNMEASURED

MOST_K = 1 << 22
MOST_N = 1 << 20
"""Columns of x: the offsets of a tile's rows have 32 bits."""


def _record(
    op: str, when: tuple[Constraint, ...], rows: FeatureRule, step: int, archs: tuple[str, ...], name: str = ""
) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_asm.products.targets:{op}",
        archs=archs,
        priority=UNMEASURED,
        when=(
            *when,
            MultipleOf("k", step),
            AtMost("k", MOST_K),
            AtMost("n", MOST_N),
            MultipleOf("n", 8),
            UnitStride("x", "w", "bias"),
            *map(Aligned, ("x", "w", "bias")),
        ),
        features=(rows, Exact("n"), Exact("k")),
        config="opmux_asm.products.configs:tile_config",
        config_schema="opmux_asm.products.configs:TileConfig",
        space="opmux_asm.products.configs:tile_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("linear", (Dtype("x", "bfloat16", "float16"),), Bucket("tokens"), 64, ARCHS),
    *(
        _record(
            "scaled_linear",
            (
                Dtype("x", dtype, "int8"),
                Dtype("out_dtype", "bfloat16", "float16", "float32"),
                Dtype("bias", "bfloat16", "float16", "float32"),
                ScaleBlock("x", (1, -1)),
                ScaleBlock("w", (1, -1)),
            ),
            Bucket("m"),
            128,
            (arch,),
            name,
        )
        for arch, (name, dtype) in FP8.items()
    ),
)
