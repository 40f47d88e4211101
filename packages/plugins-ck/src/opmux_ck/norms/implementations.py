"""The records of the norms."""

from opmux.plugin import (
    Aligned,
    AnyOf,
    AtMost,
    Constraint,
    Contiguous,
    Dtype,
    Exact,
    Implementation,
    MultipleOf,
    OneOf,
    Present,
    SameDtype,
    UnitStride,
)
from opmux_ck.archs import ARCHS, FP8, NAMED, UNMEASURED
from opmux_ck.norms.configs import LONGEST


def _record(
    op: str,
    tensors: tuple[str, ...],
    *more: Constraint,
    space: str = "norm_space",
    config: str = "norm_config",
    schema: str = "NormConfig",
    archs: tuple[str, ...] = ARCHS,
    name: str = "",
) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_ck.norms.targets:{op}",
        archs=archs,
        priority=UNMEASURED,
        when=(
            Dtype("x", "bfloat16", "float16"),
            AnyOf(SameDtype("x", "weight"), Dtype("weight", "float32")),
            MultipleOf("hidden", 8),
            UnitStride(*tensors),
            *(Aligned(tensor) for tensor in tensors),
            *more,
        ),
        features=(Exact("hidden"),),
        config=f"opmux_ck.norms.configs:{config}",
        config_schema=f"opmux_ck.norms.configs:{schema}",
        space=f"opmux_ck.norms.configs:{space}",
        kernels=NAMED,
        capturable=True,
        deterministic=True,
    )


def _quantized(op: str, tensors: tuple[str, ...], *more: Constraint) -> list[Implementation]:
    """A record for each arch, whose instructions know one flavour of fp8."""
    return [
        _record(
            op,
            tensors,
            NO_OFFSET,
            *more,
            AtMost("hidden", LONGEST),
            Dtype("dtype", fp8, "int8"),
            OneOf("block", (1, 128), (1, -1), (1, 32)),
            OneOf("scale_major", "k"),
            space="quantized_space",
            config="quantized_config",
            schema="QuantizedNormConfig",
            archs=(arch,),
            name=arch,
        )
        for arch, fp8 in FP8.items()
    ]


NO_OFFSET = OneOf("weight_offset", 0.0)
ADDED = ("x", "residual", "weight")
SAME = SameDtype("x", "residual")
HELD = AtMost("hidden", LONGEST)
RECORDS = (
    _record("rms_norm", ("x", "weight"), NO_OFFSET),
    _record("add_rms_norm", ADDED, NO_OFFSET, SAME, HELD, space="one_pass_space"),
    _record("add_rms_norm_", ADDED, NO_OFFSET, SAME, HELD, Contiguous("x", "residual"), space="one_pass_space"),
    *_quantized("rms_norm_quantize", ("x", "weight")),
    *_quantized("add_rms_norm_quantize", ADDED, SAME),
    _record("layer_norm", ("x", "weight", "bias"), Present("bias")),
    _record("add_layer_norm", (*ADDED, "bias"), Present("bias"), SAME, HELD, space="one_pass_space"),
)
