"""The records of quantisation."""

from dataclasses import dataclass

from opmux.plugin import (
    AnyOf,
    AtMost,
    Call,
    Constraint,
    Dtype,
    Exact,
    Implementation,
    MaxNumel,
    OneOf,
    UnitStride,
)
from opmux_cutile.archs import FLOATS, PRIORITY
from opmux_cutile.bounds import MOST_FLOATS, WIDEST
from opmux_cutile.norms.configs import LONGEST

CODES = ("float8_e4m3fn", "float8_e5m2", "int8")
BLOCKS = ((1, 128), (1, 32), (1, -1))
SQUARES = ((128, 128), (-1, -1))
PARTS = 8192
"""Columns of the widest row with one scale where rows are not normed."""
MOST_ROWS = (1 << 31) - 4
"""Of a matrix: how far apart columns of transposed scales are is a number of 32 bits."""


@dataclass(frozen=True)
class FloatCodesByArch(Constraint):
    """CUDA Tile has 8-bit floats from sm_90 on: a tensor's, or those that an option names."""

    argument: str

    def check(self, call: Call) -> str | None:
        given = call.tensors.get(self.argument)
        dtype = call.options.get(self.argument) if given is None else given.dtype
        if dtype is None or not dtype.is_floating_point or dtype.itemsize > 1 or call.arch.number >= (9, 0):
            return None
        return f"{self.argument} is {str(dtype).removeprefix('torch.')}, which CUDA Tile has from sm_90 on"


def _record(op: str, kind: str, width: str, tensors: tuple[str, ...], *wide: Constraint) -> Implementation:
    schemas = {"rows": "norms.configs:NormConfig", "normed": "quantization.configs:NormedConfig"}
    schema = schemas.get(kind, "gates.configs:GatedConfig")
    return Implementation(
        op=op,
        target=f"opmux_cutile.quantization.targets:{op}",
        archs=("sm_89+",),
        priority=PRIORITY,
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in tensors),
            Dtype("dtype", *CODES),
            FloatCodesByArch("dtype"),
            OneOf("block", *BLOCKS),
            *wide,
            AtMost("m", MOST_ROWS),
            UnitStride(*tensors),
        ),
        features=(Exact(width), Exact("block")),
        config=f"opmux_cutile.quantization.configs:{kind}_config",
        config_schema=f"opmux_cutile.{schema}",
        space=f"opmux_cutile.quantization.configs:{kind}_space",
        capturable=True,
        deterministic=True,
    )


QUANTIZE = Implementation(
    op="quantize",
    target="opmux_cutile.quantization.square:quantize",
    archs=("sm_89+",),
    priority=PRIORITY,
    when=(
        Dtype("x", *FLOATS),
        Dtype("dtype", *CODES),
        FloatCodesByArch("dtype"),
        OneOf("block", *BLOCKS, *SQUARES),
        AnyOf(OneOf("block", *BLOCKS[:2], *SQUARES), AtMost("k", PARTS)),
        AnyOf(OneOf("block", *BLOCKS), AtMost("m", 1 << 22)),  # the grid's second dim has up to 65535 blocks
        AnyOf(OneOf("block", *BLOCKS), MaxNumel("x", MOST_FLOATS)),
        AnyOf(OneOf("block", *SQUARES), AtMost("k", WIDEST)),
        AtMost("m", MOST_ROWS),
        UnitStride("x"),
    ),
    features=(Exact("k"), Exact("block")),
    config="opmux_cutile.quantization.square_configs:quantize_config",
    config_schema="opmux_cutile.gates.configs:GatedConfig",
    space="opmux_cutile.quantization.square_configs:quantize_space",
    capturable=True,
    deterministic=True,
)
RECORDS = (
    QUANTIZE,
    _record(
        "silu_and_mul_quantize",
        "groups",
        "n",
        ("x",),
        AtMost("n", WIDEST),
        AnyOf(OneOf("block", *BLOCKS[:2]), AtMost("n", PARTS)),
    ),
    _record("rms_norm_quantize", "normed", "hidden", ("x", "weight"), AtMost("hidden", LONGEST)),
    _record("add_rms_norm_quantize", "rows", "hidden", ("x", "residual", "weight"), AtMost("hidden", LONGEST)),
)
