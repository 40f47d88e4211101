"""What a plugin author imports. Importing it loads no toolchain and touches no device."""

from opmux.declared.constraints import (
    Absent,
    Aligned,
    AtLeast,
    AtMost,
    Constraint,
    Contiguous,
    Dtype,
    Equal,
    MaxNumel,
    MultipleOf,
    OneOf,
    Predicate,
    Present,
    SameDtype,
    ScaleBlock,
    UnitStride,
)
from opmux.declared.features import Alignment, Bucket, Exact, FeatureRule, StrideOrder
from opmux.declared.implementation import Implementation, Priority
from opmux.definition import GENERATED, REFUSED, Accumulated, define_op
from opmux.errors import BackendFault, BuildFailed
from opmux.plugins.hookspecs import hookimpl
from opmux.plugins.loading import API_VERSION

__all__ = [
    "API_VERSION",
    "GENERATED",
    "REFUSED",
    "Absent",
    "Accumulated",
    "Aligned",
    "Alignment",
    "AtLeast",
    "AtMost",
    "BackendFault",
    "Bucket",
    "BuildFailed",
    "Constraint",
    "Contiguous",
    "Dtype",
    "Equal",
    "Exact",
    "FeatureRule",
    "Implementation",
    "MaxNumel",
    "MultipleOf",
    "OneOf",
    "Predicate",
    "Present",
    "Priority",
    "SameDtype",
    "ScaleBlock",
    "StrideOrder",
    "UnitStride",
    "define_op",
    "hookimpl",
]
