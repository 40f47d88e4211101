"""The record of `linear` for archs without a copy engine."""

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
from opmux_cutile.archs import PRIORITY, WITHOUT_COPY_ENGINE
from opmux_cutile.bounds import MOST_HALVES

RECORD = Implementation(
    op="linear",
    name="gathered",
    target="opmux_cutile.products.gathered.targets:linear",
    archs=WITHOUT_COPY_ENGINE,
    priority=PRIORITY,
    when=(
        Dtype("x", "bfloat16", "float16"),
        Dtype("out_dtype", "bfloat16", "float16"),
        AtLeast("k", 8),
        MultipleOf("k", 8),
        MultipleOf("n", 8),
        AtMost("tokens", 1 << 23),
        MaxNumel("w", MOST_HALVES),
        UnitStride("x", "w", "bias"),
        Aligned("x"),
        Aligned("w"),
    ),
    features=(Bucket("tokens", per_octave=8), Exact("n"), Exact("k")),
    config="opmux_cutile.products.gathered.configs:gathered_config",
    config_schema="opmux_cutile.products.configs:LinearConfig",
    space="opmux_cutile.products.gathered.configs:gathered_space",
    capturable=True,
    deterministic=True,
)
