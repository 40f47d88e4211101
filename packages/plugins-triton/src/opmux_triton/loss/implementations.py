"""The records of the losses."""

from opmux.plugin import Bucket, Caveat, Constraint, Dtype, Exact, Implementation, UnitStride
from opmux_triton.archs import FLOATS, HALVES, PORTABLE
from opmux_triton.loss.constraints import KeepsSmallGradients


def _of_logits(op: str, config: str, *more: Constraint) -> Implementation:
    return Implementation(
        op=op,
        target=f"opmux_triton.loss.targets:{op}",
        archs=PORTABLE,
        when=(Dtype("logits", *FLOATS), UnitStride("logits"), *more),
        features=(Exact("vocab"), Bucket("tokens")),
        config=f"opmux_triton.loss.configs:{config}_config",
        space=f"opmux_triton.loss.spaces:{config}_space",
        config_schema="opmux_triton.loss.configs:RowsConfig",
        capturable=True,
        deterministic=True,
        caveats=(Caveat.NONFINITE_KIND,),
    )


def _fused(op: str, name: str, dtypes: tuple[str, ...]) -> Implementation:
    when: list[Constraint] = [Dtype("x", *dtypes)]
    if op.endswith("_backward"):
        when.append(UnitStride("x_gradient", "weight_gradient"))
    if op != "fused_linear_cross_entropy":  # the loss alone has no products of gradients
        when.append(KeepsSmallGradients("x"))
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.loss.fused_targets:{op}",
        archs=PORTABLE,
        when=tuple(when),
        features=(Exact("vocab"), Exact("hidden"), Bucket("tokens")),
        config=f"opmux_triton.loss.configs:{f'fused_{name}' if name else 'fused'}_config",
        space=f"opmux_triton.loss.spaces:{f'fused_{name}' if name else 'fused'}_space",
        config_schema="opmux_triton.loss.configs:FusedConfig",
        # As far as its products are, which are chosen for `linear` and `linear_backward`: one that is not capturable
        # refuses by its own name.
        capturable=True,
        deterministic=True,
        caveats=(Caveat.NONFINITE_KIND,),
    )


_FUSED = (
    "fused_linear_cross_entropy", "fused_linear_cross_entropy_gradients", "fused_linear_cross_entropy_backward",
)  # fmt: skip

RECORDS = (
    _of_logits("cross_entropy", "rows"),
    _of_logits("cross_entropy_lse", "rows"),
    _of_logits("cross_entropy_backward", "gradient", Dtype("grad_loss", "float32")),
    *(_fused(op, "", HALVES) for op in _FUSED),
    *(_fused(op, "float32", ("float32",)) for op in _FUSED),
)
