"""The records of grouped products."""

from opmux.plugin import Bucket, Constraint, Dtype, Exact, Implementation, MaxNumel, MultipleOf, Priority, UnitStride
from opmux_triton.archs import FLOATS, HALVES, HOPPER, PORTABLE

CODES = ("int8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_RAGGED = (Bucket("m"), Exact("groups"), Exact("n"), Exact("k"))
_MASKED = (Bucket("expected_m"), Exact("groups"), Exact("n"), Exact("k"))
_FINE = {"m": Bucket("m", per_octave=8), "expected_m": Bucket("expected_m", per_octave=8)}
"""How many whole tiles the rows of a group take is hidden by octaves."""


def _record(op: str, name: str, when: tuple[Constraint, ...], config: str, schema: str, out: bool) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.grouped_gemm.targets:{op}",
        archs=PORTABLE,
        when=when,
        features=_MASKED if "masked" in op else _RAGGED,
        config=f"opmux_triton.grouped_gemm.heuristics:{config}",
        space=f"opmux_triton.grouped_gemm.spaces:{config}",
        config_schema=f"opmux_triton.grouped_gemm.configs:{schema}",
        capturable=True,
        deterministic=True,
        takes_out=out,
    )


def _real(
    op: str, config: str, schema: str = "GroupedConfig", lead: str = "x", out: bool = False
) -> list[Implementation]:
    return [
        _record(op, "", (Dtype(lead, *HALVES),), config, schema, out),
        _record(op, "float32", (Dtype(lead, "float32"),), f"{config}_float32", schema, out),
    ]


def _scaled(op: str) -> Implementation:
    when = (Dtype("x", *CODES), Dtype("out_dtype", *FLOATS))
    return _record(op, "", when, "scaled", "ScaledGroupedConfig", True)


def _hopper(op: str) -> Implementation:
    """For groups of many rows; those of few are left to the portable kernel, which it launches then."""
    when = (
        Dtype("x", "float8_e4m3fn", "float8_e5m2"), Dtype("out_dtype", *FLOATS), UnitStride("x", "w"),
        MultipleOf("k", 16), MaxNumel("x_scale"), MaxNumel("w_scale"),
    )  # fmt: skip
    return Implementation(
        op=op,
        name="hopper",
        target=f"opmux_triton.grouped_gemm.hopper_targets:{op}",
        archs=HOPPER,
        priority=Priority.PORTABLE + 1,
        when=when,
        features=(*_MASKED, _FINE["expected_m"]) if "masked" in op else (*_RAGGED, _FINE["m"]),
        config="opmux_triton.grouped_gemm.heuristics:hopper_scaled",
        space="opmux_triton.grouped_gemm.spaces:hopper_scaled",
        config_schema="opmux_triton.grouped_gemm.hopper_configs:HopperGroupedConfig",
        capturable=True,
        deterministic=True,
        takes_out=True,
    )


def _scaled_sums(op: str) -> Implementation:
    return _record(op, "", (Dtype("x", *CODES),), "scaled_weight_grad", "ScaledGroupedConfig", False)


RECORDS = (
    *_real("grouped_linear", "grouped", out=True),
    *_real("masked_grouped_linear", "grouped", out=True),
    *_real("grouped_linear_backward", "backward", "GroupedBackwardConfig"),
    *_real("grouped_weight_grad", "weight_grad"),
    _scaled("scaled_grouped_linear"),
    _scaled("scaled_masked_grouped_linear"),
    _hopper("scaled_grouped_linear"),
    _hopper("scaled_masked_grouped_linear"),
    _scaled_sums("scaled_grouped_weight_grad"),
)
