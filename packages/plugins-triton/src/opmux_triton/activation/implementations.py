"""The records of the gated activations."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, *tensors: str) -> Implementation:
    backward = op.endswith("_backward")
    return Implementation(
        op=op,
        target=f"opmux_triton.activation.{'backward_targets' if backward else 'targets'}:{op}",
        archs=PORTABLE,
        when=(Dtype(tensors[0], *FLOATS), UnitStride(*tensors)),
        features=(Exact("n"), Bucket("tokens")),
        config=f"opmux_triton.activation.configs:{'gated_backward_config' if backward else 'gated_config'}",
        space=f"opmux_triton.activation.spaces:{'gated_backward_space' if backward else 'gated_space'}",
        config_schema="opmux_triton.activation.configs:GatedConfig",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("silu_and_mul", "x"),
    _record("gelu_and_mul", "x"),
    _record("silu_mul", "gate", "up"),
    _record("gelu_mul", "gate", "up"),
    _record("silu_and_mul_backward", "grad_out", "x"),
    _record("gelu_and_mul_backward", "grad_out", "x"),
    _record("silu_mul_backward", "grad_out", "gate", "up"),
    _record("gelu_mul_backward", "grad_out", "gate", "up"),
)
