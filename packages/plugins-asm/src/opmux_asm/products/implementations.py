"""The records of the products."""

from collections.abc import Iterator

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
    op: str, when: tuple[Constraint, ...], rows: FeatureRule, step: int, archs: tuple[str, ...], name: str = "",
    kind: str = "tile",
) -> Implementation:  # fmt: skip
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_asm.products.targets:{op}{'_blocks' if kind == 'block' else ''}",
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
        config=f"opmux_asm.products.configs:{kind}_config",
        config_schema="opmux_asm.products.configs:TileConfig",
        space=f"opmux_asm.products.configs:{kind}_space",
        capturable=True,
        deterministic=True,
    )


RESULTS = (
    Dtype("out_dtype", "bfloat16", "float16", "float32"),
    Dtype("bias", "bfloat16", "float16", "float32"),
)


def _scaled() -> Iterator[Implementation]:
    """Records for each arch, whose instructions know one flavour of fp8."""
    for arch, (name, dtype) in FP8.items():
        channels = Dtype("x", dtype, "int8"), *RESULTS, ScaleBlock("x", (1, -1)), ScaleBlock("w", (1, -1))
        blocks = Dtype("x", dtype), *RESULTS, ScaleBlock("x", (1, 128)), ScaleBlock("w", (128, 128))
        yield _record("scaled_linear", channels, Bucket("m"), 128, (arch,), name)
        yield _record("scaled_linear", blocks, Bucket("m"), 128, (arch,), f"{name}_blocks", "block")


HALVES = ("bfloat16", "float16")

RECORDS = (
    _record("linear", (Dtype("x", *HALVES), Dtype("out_dtype", *HALVES)), Bucket("tokens"), 64, ARCHS),
    *_scaled(),
)
