"""The records of quantisation."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE

RECORDS = (
    Implementation(
        op="quantize",
        target="opmux_triton.quantization.targets:quantize",
        archs=PORTABLE,
        when=(Dtype("x", *FLOATS), UnitStride("x")),
        features=(Exact("k"), Exact("block"), Bucket("m")),
        config="opmux_triton.quantization.configs:quantize_config",
        space="opmux_triton.quantization.spaces:quantize_space",
        config_schema="opmux_triton.quantization.configs:QuantizeConfig",
        capturable=True,
        deterministic=True,
    ),
)
