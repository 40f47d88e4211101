"""The records of quantisation."""

from opmux.plugin import Bucket, Constraint, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, kind: str, width: str, *tensors: str, space: str | None = None) -> Implementation:
    """An op that quantises; ``space`` names its own where that of its kind is not the whole one."""
    schema = "QuantizeConfig" if kind == "quantize" else "FusedConfig"
    return Implementation(
        op=op,
        target=f"opmux_triton.quantization.{'targets' if kind == 'quantize' else 'fused_targets'}:{op}",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in tensors), UnitStride(*tensors)),
        features=(Exact(width), Exact("block"), Bucket("m")),
        config=f"opmux_triton.quantization.configs:{kind}_config",
        space=f"opmux_triton.quantization.spaces:{space or kind}_space",
        config_schema=f"opmux_triton.quantization.configs:{schema}",
        capturable=True,
        deterministic=True,
    )


def _known_scale(op: str, width: str, *when: Constraint) -> Implementation:
    """An op whose scales are known; ``width`` is the tensor that is read along its rows."""
    return Implementation(
        op=op,
        target=f"opmux_triton.quantization.known_scale_targets:{op}",
        archs=PORTABLE,
        when=(*when, UnitStride(width)),
        features=(Exact("k"), Bucket("m")),
        config="opmux_triton.quantization.configs:known_scale_config",
        space="opmux_triton.quantization.spaces:known_scale_space",
        config_schema="opmux_triton.quantization.configs:QuantizeConfig",
        capturable=True,
        deterministic=True,
    )


def _of_scales(op: str) -> Implementation:
    """An op that converts scales."""
    return Implementation(
        op=op,
        target=f"opmux_triton.quantization.scale_targets:{op}",
        archs=PORTABLE,
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _known_scale("static_quantize", "x", Dtype("x", *FLOATS)),
    _known_scale("dequantize", "q", Dtype("out_dtype", *FLOATS)),
    _known_scale("convert_fp8", "q"),
    _of_scales("convert_scale"),
    _of_scales("pack_scale"),
    _of_scales("unpack_scale"),
    _record("quantize", "quantize", "k", "x"),
    _record("rms_norm_quantize", "norm_quantize", "hidden", "x", "weight", space="rms_norm_quantize"),
    _record("add_rms_norm_quantize", "norm_quantize", "hidden", "x", "residual", "weight"),
    _record("silu_and_mul_quantize", "gate_quantize", "n", "x"),
)
