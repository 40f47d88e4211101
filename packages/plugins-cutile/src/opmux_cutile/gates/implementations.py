"""The records of the gated activations."""

from opmux.plugin import AtMost, Constraint, Dtype, Exact, Implementation, OneOf, UnitStride
from opmux_cutile.archs import ARCHS, FLOATS, PRIORITY
from opmux_cutile.bounds import WIDEST


def _record(op: str, tensors: tuple[str, ...], *more: Constraint) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.gates.{'backward' if op.endswith('backward') else 'targets'}:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(Dtype(tensors[0], *FLOATS), AtMost("n", WIDEST), UnitStride(*tensors), *more),
        features=(Exact("n"),),
        config="opmux_cutile.gates.configs:gated_config",
        config_schema="opmux_cutile.gates.configs:GatedConfig",
        space="opmux_cutile.gates.configs:gated_space",
        capturable=True,
        deterministic=True,
    )


TANH = OneOf("approximate", "tanh")
RECORDS = (
    _record("silu_and_mul", ("x",)),
    _record("silu_mul", ("gate", "up")),
    _record("gelu_and_mul", ("x",), TANH),
    _record("gelu_mul", ("gate", "up"), TANH),
    _record("silu_and_mul_backward", ("grad_out", "x")),
    _record("silu_mul_backward", ("grad_out", "gate", "up")),
    _record("gelu_and_mul_backward", ("grad_out", "x"), TANH),
    _record("gelu_mul_backward", ("grad_out", "gate", "up"), TANH),
)
