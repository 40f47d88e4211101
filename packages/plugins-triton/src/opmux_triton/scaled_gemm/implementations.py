"""The records of scaled products."""

from opmux.plugin import (
    Bucket,
    Constraint,
    Dtype,
    Exact,
    FeatureRule,
    Implementation,
    MaxNumel,
    MultipleOf,
    OneOf,
    Predicate,
    Priority,
    UnitStride,
)
from opmux_triton.archs import FLOATS, HOPPER, PORTABLE
from opmux_triton.scaled_gemm.hopper_heuristics import why_not_scaled_linear

OCP = ("float8_e4m3fn", "float8_e5m2")
FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
_WEIGHT: tuple[FeatureRule, ...] = (Exact("n"), Exact("k"))
_BATCH: dict[str, tuple[FeatureRule, ...]] = {"scaled_linear": (Bucket("batch"),), "scaled_linear_accumulate": ()}
_WHEN: dict[str, tuple[Constraint, ...]] = {
    "scaled_linear": (Dtype("out_dtype", *FLOATS), UnitStride("bias")),
    "scaled_linear_accumulate": (),
}

_DESCRIBED = (MultipleOf("k", 16), MultipleOf("n", 8), MaxNumel("x_scale"), MaxNumel("w_scale"))
"""Rows of codes and of results that descriptors reach, 16 bytes apart; scales within the reach of 32-bit offsets."""


def _portable(op: str, name: str, config: str, dtypes: tuple[str, ...]) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.scaled_gemm.targets:{op}",
        archs=PORTABLE,
        when=(Dtype("x", *dtypes), UnitStride("x", "w"), *_WHEN[op]),
        features=(*_BATCH[op], Bucket("m"), *_WEIGHT, *((Exact("k_blocks"),) if name == "int8" else ())),
        config=f"opmux_triton.scaled_gemm.heuristics:{config}",
        space=f"opmux_triton.scaled_gemm.spaces:{config}",
        config_schema="opmux_triton.scaled_gemm.configs:ScaledConfig",
        capturable=True,
        deterministic=True,
    )


def _hopper_features(op: str) -> tuple[FeatureRule, ...]:
    return (*_BATCH[op], Bucket("m", per_octave=8), *_WEIGHT, Exact("k_blocks"), Exact("w_rows"))


def _hopper(op: str, name: str, target: str, *more: Constraint, numerics: str | None = None) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.scaled_gemm.hopper_targets:{target}",
        archs=HOPPER,
        priority=Priority.PORTABLE + 1,
        when=(Dtype("x", *OCP), UnitStride("x", "w"), *_DESCRIBED, *_WHEN[op], *more),
        features=_hopper_features(op),
        config=f"opmux_triton.scaled_gemm.hopper_heuristics:{op}",
        space=f"opmux_triton.scaled_gemm.spaces:hopper_{op}",
        config_schema="opmux_triton.scaled_gemm.hopper_configs:HopperScaledConfig",
        capturable=True,
        deterministic=True,
        numerics=numerics,
    )


_FORMATS = (
    ("", "scaled_linear", OCP),
    ("fnuz", "scaled_linear_fnuz", FNUZ),
    ("int8", "scaled_linear_int8", ("int8",)),
)
RECORDS = (
    *(_portable(op, *form) for op in _BATCH for form in _FORMATS),
    _hopper(
        "scaled_linear",
        "hopper",
        "scaled_linear",
        Predicate(why_not_scaled_linear, reads=_hopper_features("scaled_linear")),
    ),
    _hopper("scaled_linear_accumulate", "hopper", "scaled_linear_accumulate"),
    _hopper(
        "scaled_linear",
        "hopper_fast",
        "fast_scaled_linear",
        OneOf("k_blocks", 1),
        numerics="the matrix units keep about 14 bits of a sum over all of k; float32 does not take over every 128",
    ),
)
