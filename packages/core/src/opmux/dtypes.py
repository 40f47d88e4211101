"""The dtype groups of op signatures, and the few questions asked of a dtype.

jaxtyping supplies the notation (``Real[Tensor, "*tokens hidden"]``); its own groups are not used, because
its ``Float`` admits the fp8 formats and misses fp4 and e8m0. A group here is exactly the dtypes an op may be given.
"""

from typing import TYPE_CHECKING

import torch

__all__ = [
    "SHORT_NAMES",
    "Float32",
    "Fp4",
    "Fp8",
    "Index",
    "Int8",
    "Int32",
    "Int64",
    "Quantized",
    "Real",
    "RealOrFp8",
    "Scale",
    "Statistic",
    "Stored",
    "accumulation_dtype",
    "name_of",
    "short_name_of",
]

if TYPE_CHECKING:
    # To a type checker a shaped tensor is its first argument: Real[Tensor, "m k"] is Tensor.
    from typing import Annotated as Float32
    from typing import Annotated as Fp4
    from typing import Annotated as Fp8
    from typing import Annotated as Index
    from typing import Annotated as Int8
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as Quantized
    from typing import Annotated as Real
    from typing import Annotated as RealOrFp8
    from typing import Annotated as Scale
    from typing import Annotated as Statistic
    from typing import Annotated as Stored
else:
    from jaxtyping import AbstractDtype

    class Real(AbstractDtype):
        """What models compute in."""

        dtypes = ["bfloat16", "float16", "float32", "float64"]

    class Float32(AbstractDtype):
        """Single precision, whatever the other tensors are."""

        dtypes = ["float32"]

    class Statistic(AbstractDtype):
        """A quantity kept in the accumulation dtype: float32, or float64 beside float64 tensors."""

        dtypes = ["float32", "float64"]

    class Fp8(AbstractDtype):
        """The four 8-bit floats: OCP (fn, e5m2) and the fnuz flavours of gfx942."""

        dtypes = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]

    class Fp4(AbstractDtype):
        """Two e2m1 values a byte, low nibble first."""

        dtypes = ["float4_e2m1fn_x2"]

    class Int8(AbstractDtype):
        """Symmetric 8-bit integers."""

        dtypes = ["int8"]

    class Quantized(AbstractDtype):
        """What `quantize` stores: an 8-bit float or a symmetric 8-bit integer."""

        dtypes = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8"]

    class RealOrFp8(AbstractDtype):
        """Real numbers, or 8-bit floats with a scale."""

        dtypes = [*Real.dtypes, *Fp8.dtypes]

    class Stored(AbstractDtype):
        """What a KV cache stores: real numbers, or codes of them with a scale."""

        dtypes = [*Real.dtypes, *Quantized.dtypes]

    class Scale(AbstractDtype):
        """Scales: float32, or e8m0 for the MX formats."""

        dtypes = ["float32", "float8_e8m0fnu"]

    class Index(AbstractDtype):
        """Positions and other indices that may be narrow or wide."""

        dtypes = ["int32", "int64"]

    class Int32(AbstractDtype):
        """Offsets, lengths and block tables."""

        dtypes = ["int32"]

    class Int64(AbstractDtype):
        """Slots: a page times a page size may pass 2**31."""

        dtypes = ["int64"]


SHORT_NAMES: dict[str, str] = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu",
}
"""The command line's and explain's names of dtypes."""

_SHORT_OF = {long: short for short, long in SHORT_NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name without the module: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def short_name_of(dtype: torch.dtype) -> str:
    """The dtype's short name (``bf16``), or its full one where it has none."""
    name = name_of(dtype)
    return _SHORT_OF.get(name, name)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype references accumulate in: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32
