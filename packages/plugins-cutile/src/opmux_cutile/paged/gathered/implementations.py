"""The records of attention over a paged cache where both operands of the matrix units come from registers."""

from opmux.plugin import Aligned, Dtype
from opmux_cutile.archs import UNPROVED, WITHOUT_COPY_ENGINE
from opmux_cutile.attention.configs import IN_REGISTERS
from opmux_cutile.paged.implementations import CACHES, OPS, record
from opmux_cutile.quantization.implementations import CODES, FloatCodesByArch

ARCHS = (*WITHOUT_COPY_ENGINE, *IN_REGISTERS)
MODULE = "opmux_cutile.paged.gathered"
ALIGNED = tuple(Aligned(name) for name in ("q", *CACHES))
NUMBERS = tuple(Dtype(name, "bfloat16", "float16") for name in CACHES)
CODED = (*(Dtype(name, *CODES) for name in CACHES), *map(FloatCodesByArch, CACHES))
RECORDS = tuple(
    record(op, ARCHS, MODULE, config, (*stored, *ALIGNED), UNPROVED, name=config)
    for op in OPS
    for config, stored in (("gathered", NUMBERS), ("gathered_codes", CODED))
)
