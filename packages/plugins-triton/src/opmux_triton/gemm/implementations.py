"""The records of the products."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import HALVES, PORTABLE

_FEATURES = (Bucket("tokens"), Exact("n"), Exact("k"))

RECORDS = (
    Implementation(
        op="linear",
        target="opmux_triton.gemm.targets:linear",
        archs=PORTABLE,
        when=(Dtype("x", *HALVES), UnitStride("bias")),
        features=_FEATURES,
        config="opmux_triton.gemm.configs:linear",
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="linear",
        name="float32",
        target="opmux_triton.gemm.targets:linear",
        archs=PORTABLE,
        when=(Dtype("x", "float32"), UnitStride("bias")),
        features=_FEATURES,
        config="opmux_triton.gemm.configs:linear_float32",
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="linear_backward",
        target="opmux_triton.gemm.targets:linear_backward",
        archs=PORTABLE,
        when=(Dtype("x", *HALVES),),
        features=_FEATURES,
        config="opmux_triton.gemm.configs:linear_backward",
        capturable=True,
        deterministic=True,
    ),
    Implementation(
        op="linear_backward",
        name="float32",
        target="opmux_triton.gemm.targets:linear_backward",
        archs=PORTABLE,
        when=(Dtype("x", "float32"),),
        features=_FEATURES,
        config="opmux_triton.gemm.configs:linear_backward_float32",
        capturable=True,
        deterministic=True,
    ),
)
