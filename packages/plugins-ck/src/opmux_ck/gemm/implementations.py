"""The records of the products."""

from typing import Any

from opmux.plugin import (
    Absent,
    Aligned,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    FeatureRule,
    Implementation,
    MultipleOf,
    ScaleBlock,
    UnitStride,
)
from opmux_ck.archs import ARCHS, FP8, NAMED, UNMEASURED
from opmux_ck.gemm.configs import SCALE_BLOCK

MOST_K = 1 << 20
MOST_N = 1 << 20
"""Rows of a tile are addressed in 32 bits: 256 of them, of float32 where k is cut, are 1 GiB."""
MULTIPLY = (
    AtMost("k", MOST_K),
    AtMost("n", MOST_N),
)

_CHANNELS: dict[str, Any] = {"name": "channels", "x_block": (1, -1), "w_block": (1, -1), "config": "codes"}
_BLOCKS: dict[str, Any] = {
    "name": "blocks",
    "x_block": (1, SCALE_BLOCK),
    "w_block": (SCALE_BLOCK, SCALE_BLOCK),
    "config": "blocks",
}
_SCHEMAS = {"codes": "CodesConfig", "blocks": "BlockCodesConfig"}
_RAGGED, _ROWS = ("x", "w", "group_offsets", "group_sizes"), (Bucket("m"), Exact("groups"))
_MASKED, _EXPECTED = ("x", "w", "masked_m"), (Bucket("expected_m"),)


def _grouped(op: str, tensors: tuple[str, ...], *rows: FeatureRule) -> Implementation:
    """The record for groups of rows; ``rows`` tell how many a group has on average."""
    return Implementation(
        op=op,
        target=f"opmux_ck.gemm.grouped_targets:{op}",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            MultipleOf("k", 8),
            *MULTIPLY,
            UnitStride(*tensors),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(*rows, Exact("n"), Exact("k")),
        config="opmux_ck.gemm.choice:grouped_config",
        config_schema="opmux_ck.gemm.configs:GroupedConfig",
        space="opmux_ck.gemm.choice:grouped_space",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )


def _scaled_grouped(
    op: str, tensors: tuple[str, ...], rows: tuple[FeatureRule, ...], x_dims: int, arch: str, scales: dict[str, Any]
) -> Implementation:
    """The record for groups of rows of codes, for an arch and blocks of scales; x has ``x_dims`` dims."""
    return Implementation(
        op=op,
        name=f"{scales['name']}_{arch}",
        target=f"opmux_ck.gemm.grouped_targets:{op}",
        archs=(arch,),
        priority=UNMEASURED,
        when=(
            Dtype("x", FP8[arch], "int8"),
            Dtype("out_dtype", "bfloat16", "float16"),
            ScaleBlock("x", (*[1] * (x_dims - 2), *scales["x_block"])),
            ScaleBlock("w", (1, *scales["w_block"])),
            MultipleOf("k", 16),
            *MULTIPLY,
            UnitStride(*tensors),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(*rows, Exact("n"), Exact("k")),
        config=f"opmux_ck.gemm.choice:grouped_{scales['config']}_config",
        config_schema=f"opmux_ck.gemm.configs:Grouped{_SCHEMAS[scales['config']]}",
        space=f"opmux_ck.gemm.choice:grouped_{scales['config']}_space",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )


def _scaled(
    arch: str, *dtypes: str, name: str, x_block: tuple[int, int], w_block: tuple[int, int], config: str
) -> Implementation:
    """The record for an arch, whose instructions know one flavour of fp8, and for blocks of scales."""
    return Implementation(
        op="scaled_linear",
        name=f"{name}_{arch}",
        target="opmux_ck.gemm.targets:scaled_linear",
        archs=(arch,),
        priority=UNMEASURED,
        when=(
            Dtype("x", *dtypes),
            Dtype("out_dtype", "bfloat16", "float16"),
            ScaleBlock("x", x_block),
            ScaleBlock("w", w_block),
            Absent("bias"),
            MultipleOf("k", 16),
            *MULTIPLY,
            UnitStride("x", "w"),
            Aligned("x"),
            Aligned("w"),
        ),
        features=(Bucket("m"), Exact("n"), Exact("k")),
        config=f"opmux_ck.gemm.choice:{config}_config",
        config_schema=f"opmux_ck.gemm.configs:{_SCHEMAS[config]}",
        space=f"opmux_ck.gemm.choice:{config}_space",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    Implementation(
        op="linear",
        target="opmux_ck.gemm.targets:linear",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            Dtype("out_dtype", "bfloat16", "float16"),
            MultipleOf("k", 8),
            *MULTIPLY,
            UnitStride("x", "w", "bias"),
            *(Aligned(tensor) for tensor in ("x", "w", "bias")),
        ),
        features=(Bucket("tokens"), Exact("n"), Exact("k")),
        config="opmux_ck.gemm.choice:gemm_config",
        config_schema="opmux_ck.gemm.configs:GemmConfig",
        space="opmux_ck.gemm.choice:gemm_space",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    ),
    _grouped("grouped_linear", _RAGGED, *_ROWS),
    _grouped("masked_grouped_linear", _MASKED, *_EXPECTED),
    *(_scaled(arch, fp8, "int8", **blocks) for blocks in (_CHANNELS, _BLOCKS) for arch, fp8 in FP8.items()),
    *(
        record
        for scales in (_CHANNELS, _BLOCKS)
        for arch in ARCHS
        for record in (
            _scaled_grouped("scaled_grouped_linear", _RAGGED, _ROWS, 2, arch, scales),
            _scaled_grouped("scaled_masked_grouped_linear", _MASKED, _EXPECTED, 3, arch, scales),
        )
    ),
)
