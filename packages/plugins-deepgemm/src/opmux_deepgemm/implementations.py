"""The records of the products."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opmux.plugin import (
    Absent,
    Aligned,
    AnyOf,
    AtMost,
    Bucket,
    Constraint,
    Contiguous,
    Dtype,
    Exact,
    Feature,
    FeatureRule,
    Implementation,
    MultipleOf,
    Predicate,
    Priority,
    ScaleBlock,
    Signature,
    UnitStride,
)

BACKEND = "deepgemm"
ARCHS = ("sm_90",)
"""Hopper: the kernels use its own matrix and copy instructions, which later archs do not have."""
PRIORITY = Priority.PORTABLE + 2
"""Above other kernels that are no library's: on an H200 products of groups of codes were faster than those in all of 20
calls."""
MOST_ROWS, MOST_N, MOST_K = 1 << 23, 1 << 19, 1 << 24
"""Tiles are counted in 32 bits."""
MOST_MATRICES = 1 << 7
"""Of ``MOST_ROWS`` rows each: all rows are counted in 32 bits too."""


MOST_GROUPS, MOST_GROUP_ROWS = 1 << 10, 1 << 20


ADDING = "scaled_linear_accumulate"


@dataclass(frozen=True)
class Lies(FeatureRule):
    """How a required operand lies: ``along`` k, ``across`` it, its rows next to each other, or ``neither``."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        """The feature's text, over the operand."""
        t = self.name
        along = f"({t}.stride()[-1] == 1 or {t}.size(-1) <= 1)"
        across = f"({t}.dim() == 2 and {t}.stride()[0] == 1 and {t}.stride()[1] >= {t}.size(0))"
        return Feature(f"lies({t})", f"('along' if {along} else 'across' if {across} else 'neither')")


def _otherwise(features: Mapping[str, Any], what: Mapping[str, str]) -> str | None:
    """Why no operand lies across k, or one cannot be read: it lies neither along k nor across it.

    Args:
        features: how each operand lies.
        what: of each operand what lies across k: ``matrix``, or ``matrix of each group``.
    """
    lie = {name: features[f"lies({name})"] for name in what}
    for name, how in lie.items():
        if how == "neither":
            return f"{name} has unit stride neither along k nor, as a {what[name]}, across it"
    return None if "across" in lie.values() else "no operand lies across k"


def lie_otherwise(features: Mapping[str, Any]) -> str | None:
    """Why the operands of one product cannot be read across k."""
    return _otherwise(features, {"x": "matrix", "w": "matrix"})


def lie_otherwise_in_ragged_groups(features: Mapping[str, Any]) -> str | None:
    """Why x, whose rows are those of all groups, and the weights of groups cannot be read across k."""
    return _otherwise(features, {"x": "matrix", "w": "matrix of each group"})


def lie_otherwise_in_masked_groups(features: Mapping[str, Any]) -> str | None:
    """Why x and w, each with a matrix for each group, cannot be read across k."""
    return _otherwise(features, {"x": "matrix of each group", "w": "matrix of each group"})


def lie_otherwise_in_sums(features: Mapping[str, Any]) -> str | None:
    """Why no operand of a gradient of weights is turned, or one cannot be read."""
    lie = {name: features[f"lies({name})"] for name in ("dy", "x")}
    for name, how in lie.items():
        if how == "neither":
            return f"{name} has unit stride neither in its rows nor, as a transposed matrix, in its columns"
    return None if "across" in lie.values() else "neither dy nor x is transposed"


@dataclass(frozen=True)
class LieInGroups(FeatureRule):
    """How the matrices of groups lie: each ``along`` k, ``across`` it, its rows next to each other, or ``neither``."""

    name: str

    def feature(self, signature: Signature) -> Feature:
        """The feature's text, over the operand."""
        t = self.name
        along = f"({t}.stride()[2] == 1 or {t}.size(2) <= 1)"
        apart = f"({t}.stride()[0] > 0 or {t}.size(0) <= 1)"
        across = f"({t}.stride()[1] == 1 and {t}.stride()[2] >= {t}.size(1) and {apart})"
        return Feature(f"lies({t})", f"('along' if {along} else 'across' if {across} else 'neither')")


_LIES = (Lies("x"), Lies("w"))
_RAGGED_LIE = (Lies("x"), LieInGroups("w"))
_MASKED_LIE = (LieInGroups("x"), LieInGroups("w"))
_SUMS_LIE = (Lies("dy"), Lies("x"))
_ALONG = (UnitStride("x", "w"),)


def _record(
    op: str,
    rows: tuple[FeatureRule, ...],
    when: tuple[Constraint, ...],
    strides: tuple[Constraint, ...] = _ALONG,
    name: str = "",
) -> Implementation:
    return Implementation(
        op=op,
        name=name,
        target=f"opmux_deepgemm.targets:{op}",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            *when,
            AtMost("k", MOST_K),
            AtMost("n", MOST_N),
            MultipleOf("n", 8),
            *strides,
            Aligned("x"),
            Aligned("w"),
        ),
        features=(*rows, Exact("n"), Exact("k")),
        config=f"opmux_deepgemm.model:{op}",
        config_schema="opmux_deepgemm.configs:Config",
        space=f"opmux_deepgemm.model:{op}_space",
        scores=f"opmux_deepgemm.model:{op}_scores",
        capturable=True,
        deterministic=True,
        takes_out=op != ADDING,
    )


_BF16: tuple[Constraint, ...] = (Dtype("x", "bfloat16"), MultipleOf("k", 8))
_LINEAR = (
    *_BF16,
    AnyOf(Dtype("out_dtype", "bfloat16"), Absent("bias")),  # with both, the kernel for few rows has not run on a GPU
    AtMost("tokens", MOST_ROWS),
    UnitStride("bias"),
)
_FP8: tuple[Constraint, ...] = (
    Dtype("x", "float8_e4m3fn"),
    Dtype("out_dtype", "bfloat16", "float32"),
    ScaleBlock("x", (1, 128)),
    ScaleBlock("w", (128, 128)),
    MultipleOf("k", 16),
)
_RAGGED = (AtMost("m", MOST_ROWS), AtMost("groups", MOST_GROUPS))
_MASKED = (AtMost("max_m", MOST_GROUP_ROWS), AtMost("groups", MOST_GROUPS))
_OF_RAGGED = (Bucket("m", per_octave=8), Exact("groups"))
_OF_MASKED = (Bucket("expected_m", per_octave=8), Exact("groups"))
_RESULT = (Exact("out_dtype"),)  # results of 4 bytes are not staged


def _gradients(strides: Constraint, name: str = "") -> Implementation:
    return Implementation(
        op="grouped_weight_grad",
        name=name,
        target="opmux_deepgemm.targets:grouped_weight_grad",
        archs=ARCHS,
        priority=PRIORITY,
        when=(
            Dtype("x", "bfloat16"),
            *_RAGGED,
            AtMost("k", MOST_N),
            AtMost("n", MOST_N),
            MultipleOf("n", 8),
            MultipleOf("k", 8),
            strides,
            Aligned("dy"),
            Aligned("x"),
            Contiguous("out"),
            Aligned("out"),
        ),
        features=(*_OF_RAGGED, Exact("n"), Exact("k")),
        config="opmux_deepgemm.gradient_model:grouped_weight_grad",
        config_schema="opmux_deepgemm.configs:Config",
        space="opmux_deepgemm.gradient_model:grouped_weight_grad_space",
        scores="opmux_deepgemm.gradient_model:grouped_weight_grad_scores",
        capturable=True,
        deterministic=True,
    )


GRADIENTS = (
    _gradients(UnitStride("dy", "x")),
    _gradients(Predicate(lie_otherwise_in_sums, _SUMS_LIE), "across"),
)
"""Gradients of grouped weights in bfloat16: of operands that lie along their columns, and of transposed ones."""

SCALED_GRADIENTS = Implementation(
    op="scaled_grouped_weight_grad",
    target="opmux_deepgemm.targets:scaled_grouped_weight_grad",
    archs=ARCHS,
    priority=PRIORITY,
    when=(
        Dtype("x", "float8_e4m3fn"),
        *_RAGGED,
        AtMost("k", MOST_N),
        AtMost("n", MOST_N),
        MultipleOf("k", 4),
    ),
    features=(*_OF_RAGGED, Exact("n"), Exact("k")),
    config="opmux_deepgemm.scaled_gradient_model:scaled_grouped_weight_grad",
    config_schema="opmux_deepgemm.configs:Config",
    space="opmux_deepgemm.scaled_gradient_model:scaled_grouped_weight_grad_space",
    scores="opmux_deepgemm.scaled_gradient_model:scaled_grouped_weight_grad_scores",
    capturable=True,
    deterministic=True,
)
"""The same from codes; where those of neighbouring rows are not next to each other they are copied, out likewise."""

RECORDS = (
    _record("linear", (Bucket("tokens", per_octave=8),), _LINEAR),
    # The matrix unit transposes operands of 16 bits as it reads them. Measured rows do not say how operands lie, and
    # such products have configs of their own.
    _record(
        "linear",
        (Bucket("tokens", per_octave=8), *_LIES),
        _LINEAR,
        (Predicate(lie_otherwise, _LIES),),
        "across",
    ),
    _record(
        "scaled_linear",
        (Bucket("batch"), Bucket("m", per_octave=8), *_RESULT),
        (*_FP8, Dtype("bias", "bfloat16"), UnitStride("bias"), AtMost("m", MOST_ROWS), AtMost("batch", MOST_MATRICES)),
    ),
    _record(
        ADDING,
        (Bucket("m", per_octave=8),),
        (
            Dtype("x", "float8_e4m3fn"),
            ScaleBlock("x", (1, 128)),
            ScaleBlock("w", (1, 128)),
            MultipleOf("k", 16),
            AtMost("m", MOST_ROWS),
            UnitStride("out"),
            Aligned("out"),
        ),
    ),
    _record("grouped_linear", _OF_RAGGED, (*_BF16, *_RAGGED)),
    _record(
        "grouped_linear",
        (*_OF_RAGGED, *_RAGGED_LIE),
        (*_BF16, *_RAGGED),
        (Predicate(lie_otherwise_in_ragged_groups, _RAGGED_LIE),),
        "across",
    ),
    _record("scaled_grouped_linear", (*_OF_RAGGED, *_RESULT), (*_FP8, *_RAGGED)),
    _record("masked_grouped_linear", _OF_MASKED, (*_BF16, *_MASKED)),
    _record(
        "masked_grouped_linear",
        (*_OF_MASKED, *_MASKED_LIE),
        (*_BF16, *_MASKED),
        (Predicate(lie_otherwise_in_masked_groups, _MASKED_LIE),),
        "across",
    ),
    _record("scaled_masked_grouped_linear", (*_OF_MASKED, *_RESULT), (*_FP8, *_MASKED)),
    *GRADIENTS,
    SCALED_GRADIENTS,
)
