"""The records of quantisation."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, kind: str, width: str, *tensors: str) -> Implementation:
    schema = "QuantizeConfig" if kind == "quantize" else "FusedConfig"
    return Implementation(
        op=op,
        target=f"opmux_triton.quantization.{'targets' if kind == 'quantize' else 'fused_targets'}:{op}",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in tensors), UnitStride(*tensors)),
        features=(Exact(width), Exact("block"), Bucket("m")),
        config=f"opmux_triton.quantization.configs:{kind}_config",
        space=f"opmux_triton.quantization.spaces:{kind}_space",
        config_schema=f"opmux_triton.quantization.configs:{schema}",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("quantize", "quantize", "k", "x"),
    _record("rms_norm_quantize", "norm_quantize", "hidden", "x", "weight"),
    _record("add_rms_norm_quantize", "norm_quantize", "hidden", "x", "residual", "weight"),
    _record("silu_and_mul_quantize", "gate_quantize", "n", "x"),
)
