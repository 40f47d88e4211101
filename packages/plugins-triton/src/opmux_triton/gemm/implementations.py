"""The records of the products."""

from collections.abc import Callable, Mapping
from typing import Any

from opmux.plugin import Bucket, Constraint, Dtype, Exact, Implementation, Predicate, Priority, UnitStride
from opmux_triton.archs import HALVES, HOPPER, PORTABLE
from opmux_triton.gemm.hopper_heuristics import why_not_linear, why_not_linear_backward

_FEATURES = (Bucket("tokens"), Exact("n"), Exact("k"))
_FINE = (Bucket("tokens", per_octave=8), Exact("n"), Exact("k"))
"""How many tiles there are decides: an octave of tokens hides their rounds."""
_MORE: dict[str, tuple[Constraint, ...]] = {"linear": (UnitStride("bias"),), "linear_backward": ()}
_ROUNDED: dict[str, tuple[Constraint, ...]] = {"linear": (Dtype("out_dtype", *HALVES),), "linear_backward": ()}
"""Of products of 16-bit matrices: the kernels store results in the operands' dtype."""


def _portable(op: str, name: str, dtypes: tuple[str, ...], config: str, schema: str) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_triton.gemm.targets:{op}",
        archs=PORTABLE,
        when=(Dtype("x", *dtypes), *(_ROUNDED[op] if dtypes is HALVES else ()), *_MORE[op]),
        features=_FEATURES,
        config=f"opmux_triton.gemm.heuristics:{config}",
        space=f"opmux_triton.gemm.spaces:{config}",
        config_schema=f"opmux_triton.gemm.configs:{schema}",
        capturable=True,
        deterministic=True,
    )


def _hopper(
    op: str,
    schema: str,
    why_not: Callable[[Mapping[str, Any]], str | None],
    space: str,
) -> Implementation:
    return Implementation(
        op=op,
        name="hopper",
        target=f"opmux_triton.gemm.hopper_targets:{op}",
        archs=HOPPER,
        priority=Priority.PORTABLE + 1,
        when=(Dtype("x", *HALVES), *_ROUNDED[op], *_MORE[op], Predicate(why_not, reads=_FINE)),
        features=_FINE,
        config=f"opmux_triton.gemm.hopper_heuristics:{op}",
        space=f"opmux_triton.gemm.spaces:{space}",
        config_schema=f"opmux_triton.gemm.configs:{schema}",
        capturable=True,
        deterministic=True,
    )


# No record declares `tiles`. A time would be predicted by the tiles of the nearest rows, and here each size gets tiles
# of its own, picked so that the last wave is full: at 777 tokens that predicted 71 us for 40.
RECORDS = (
    _portable("linear", "", HALVES, "linear", "LinearConfig"),
    _portable("linear", "float32", ("float32",), "linear_float32", "LinearConfig"),
    _hopper("linear", "HopperConfig", why_not_linear, "hopper_linear"),
    _portable("linear_backward", "", HALVES, "linear_backward", "LinearBackwardConfig"),
    _portable("linear_backward", "float32", ("float32",), "linear_backward_float32", "LinearBackwardConfig"),
    _hopper("linear_backward", "HopperBackwardConfig", why_not_linear_backward, "hopper_linear_backward"),
)
