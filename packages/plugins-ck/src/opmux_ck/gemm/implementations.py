"""The records of the products."""

from opmux.plugin import Aligned, AtMost, Bucket, Dtype, Exact, Implementation, MultipleOf, UnitStride
from opmux_ck.archs import ARCHS, UNMEASURED
from opmux_ck.gemm.configs import LOAD

MOST_K = 1 << 20
MOST_N = 1 << 24
"""Rows of a tile are addressed in 32 bits."""
RECORDS = (
    Implementation(
        op="linear",
        target="opmux_ck.gemm.targets:linear",
        archs=ARCHS,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            MultipleOf("k", LOAD),
            AtMost("k", MOST_K),
            AtMost("n", MOST_N),
            UnitStride("x", "w", "bias"),
            *(Aligned(tensor) for tensor in ("x", "w", "bias")),
        ),
        features=(Bucket("tokens"), Exact("n"), Exact("k")),
        config="opmux_ck.gemm.choice:gemm_config",
        config_schema="opmux_ck.gemm.configs:GemmConfig",
        space="opmux_ck.gemm.choice:gemm_space",
        capturable=True,
        deterministic=True,
    ),
)
