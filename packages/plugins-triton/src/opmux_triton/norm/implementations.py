"""The records of the norms."""

from opmux.plugin import Bucket, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, PORTABLE


def _record(op: str, config: str, tensors: tuple[str, ...], tokens: bool) -> Implementation:
    features = (Exact("hidden"), Bucket("tokens")) if tokens else (Exact("hidden"),)
    return Implementation(
        op=op,
        target=f"opmux_triton.norm.{'targets' if tokens else 'backward_targets'}:{op}",
        archs=PORTABLE,
        when=(*(Dtype(name, *FLOATS) for name in tensors), UnitStride(*tensors)),
        features=features,
        config=f"opmux_triton.norm.configs:{config}",
        space=f"opmux_triton.norm.spaces:{config.removesuffix('_config')}_space",
        config_schema=f"opmux_triton.norm.configs:{'RowsConfig' if tokens else 'BackwardConfig'}",
        capturable=True,
        deterministic=True,
    )


def _forward(op: str, *tensors: str) -> Implementation:
    config = "added_config" if op.startswith("add_") else "centred_config" if op == "layer_norm" else "rms_config"
    return _record(op, config, tensors, tokens=True)


def _backward(op: str, *tensors: str) -> Implementation:
    config = "centred_backward_config" if "layer" in op else "backward_config"
    return _record(op, config, tensors, tokens=False)


_ADDED = ("grad_y", "grad_residual_out", "residual_out", "weight")

RECORDS = (
    _forward("rms_norm", "x", "weight"),
    _forward("add_rms_norm", "x", "residual", "weight"),
    _forward("add_rms_norm_", "x", "residual", "weight"),
    _forward("layer_norm", "x", "weight", "bias"),
    _forward("add_layer_norm", "x", "residual", "weight", "bias"),
    _backward("rms_norm_backward", "grad_y", "x", "weight"),
    _backward("layer_norm_backward", "grad_y", "x", "weight"),
    _backward("add_rms_norm_backward", *_ADDED),
    _backward("add_layer_norm_backward", *_ADDED),
)
