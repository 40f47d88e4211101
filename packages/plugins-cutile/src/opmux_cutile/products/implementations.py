"""The records of `linear` and of its gradients."""

from opmux.plugin import (
    Aligned,
    AtLeast,
    AtMost,
    Bucket,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    MultipleOf,
    UnitStride,
)
from opmux_cutile.archs import PRIORITY

ARCHS = ("sm_90+",)
"""Where operands are copied by TMA: kernels for older archs spill registers."""
MOST = (1 << 30) - 1
"""Elements: at two bytes, the most that 32 bits count."""

LINEAR = Implementation(
    op="linear",
    target="opmux_cutile.products.targets:linear",
    archs=ARCHS,
    priority=PRIORITY,
    when=(
        Dtype("x", "bfloat16", "float16"),
        Dtype("out_dtype", "bfloat16", "float16"),
        AtLeast("k", 8),
        MultipleOf("k", 8),
        MultipleOf("n", 8),
        AtMost("tokens", 1 << 23),
        MaxNumel("w", MOST),
        UnitStride("x", "w", "bias"),
        Aligned("x"),
        Aligned("w"),
    ),
    features=(Bucket("tokens", per_octave=8), Exact("n"), Exact("k")),
    config="opmux_cutile.products.configs:linear_config",
    config_schema="opmux_cutile.products.configs:LinearConfig",
    space="opmux_cutile.products.configs:linear_space",
    capturable=True,
    deterministic=True,
)

GRADIENTS = Implementation(
    op="linear_backward",
    target="opmux_cutile.products.backward:linear_backward",
    archs=ARCHS,
    priority=PRIORITY,
    when=(
        Dtype("x", "bfloat16", "float16"),
        AtLeast("k", 8),
        MultipleOf("k", 8),
        MultipleOf("n", 8),
        AtMost("tokens", 1 << 23),
        *(MaxNumel(name, MOST) for name in ("grad_out", "x", "w")),
        UnitStride("grad_out", "x", "w"),
        *(Aligned(name) for name in ("grad_out", "x", "w")),
    ),
    features=(Bucket("tokens", per_octave=8), Exact("n"), Exact("k")),
    config="opmux_cutile.products.backward_configs:linear_backward_config",
    config_schema="opmux_cutile.products.backward_configs:LinearBackwardConfig",
    space="opmux_cutile.products.backward_configs:linear_backward_space",
    capturable=True,
    deterministic=True,
)

RECORDS = (LINEAR, GRADIENTS)
