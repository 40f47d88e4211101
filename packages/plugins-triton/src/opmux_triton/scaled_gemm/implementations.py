"""The records of scaled products."""

from opmux.plugin import Bucket, Dtype, Exact, FeatureRule, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE

OCP = ("float8_e4m3fn", "float8_e5m2")
FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_WEIGHT: tuple[FeatureRule, ...] = (Exact("n"), Exact("k"))
_FEATURES = {
    "scaled_linear": (Bucket("batch"), Bucket("m"), *_WEIGHT),
    "scaled_linear_accumulate": (Bucket("m"), *_WEIGHT),
}
_WHEN = {"scaled_linear": (Dtype("out_dtype", *FLOATS), UnitStride("bias")), "scaled_linear_accumulate": ()}


def _portable(op: str, name: str, config: str, dtypes: tuple[str, ...]) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.scaled_gemm.targets:{op}",
        archs=PORTABLE,
        when=(Dtype("x", *dtypes), UnitStride("x", "w"), *_WHEN[op]),
        features=_FEATURES[op],
        config=f"opmux_triton.scaled_gemm.heuristics:{config}",
        space=f"opmux_triton.scaled_gemm.spaces:{config}",
        config_schema="opmux_triton.scaled_gemm.configs:ScaledConfig",
        capturable=True,
        deterministic=True,
    )


RECORDS = tuple(
    _portable(op, name, config, dtypes)
    for op in _FEATURES
    for name, config, dtypes in (
        ("", "scaled_linear", OCP),
        ("fnuz", "scaled_linear_fnuz", FNUZ),
        ("int8", "scaled_linear_int8", ("int8",)),
    )
)
