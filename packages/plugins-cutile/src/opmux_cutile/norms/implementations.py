"""The records of the norms."""

from opmux.plugin import AtMost, Dtype, Exact, Implementation, Priority, UnitStride
from opmux_cutile.archs import ARCHS, FLOATS
from opmux_cutile.norms.configs import LONGEST


def _record(op: str, tensors: tuple[str, ...]) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_cutile.norms.targets:{op}",
        archs=ARCHS,
        priority=Priority.EXPERIMENTAL,  # until conformance has run on a GPU
        when=(
            *(Dtype(tensor, *FLOATS) for tensor in tensors if tensor != "bias"),
            AtMost("hidden", LONGEST),
            UnitStride(*tensors),
        ),
        features=(Exact("hidden"),),
        config="opmux_cutile.norms.configs:norm_config",
        config_schema="opmux_cutile.norms.configs:NormConfig",
        space="opmux_cutile.norms.configs:norm_space",
        capturable=True,
        deterministic=True,
    )


RECORDS = (
    _record("rms_norm", ("x", "weight")),
    _record("add_rms_norm", ("x", "residual", "weight")),
    _record("layer_norm", ("x", "weight", "bias")),
)
