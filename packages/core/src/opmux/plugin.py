"""What a package that brings a backend imports. Importing it loads no toolchain and touches no device.

The page docs/authors/plugin-api.md lists every name with what it is for. Nothing else of opmux is public to plugins but
the modules that the page names.
"""

from opmux.arch import Arch, cpu_plays, device_arch, known_arch, parse_arch
from opmux.callpath.guards import Guard, make_guard
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.caveats import Caveat
from opmux.declared.constraints import (
    Absent,
    AnyOf,
    AtLeast,
    AtMost,
    Constraint,
    Dtype,
    Equal,
    MultipleOf,
    OneOf,
    Predicate,
    Present,
    SameDtype,
)
from opmux.declared.features import Alignment, Bucket, Exact, Feature, FeatureRule, StrideOrder
from opmux.declared.implementation import Implementation, Priority
from opmux.declared.memory_constraints import Aligned, Contiguous, MaxNumel, ScaleBlock, UnitStride
from opmux.definition import GENERATED, REFUSED, Accumulated, Chosen, OpFunction, Widened, define_op
from opmux.errors import (
    BackendFault,
    BuildDeferred,
    BuildFailed,
    CaptureRefused,
    InvalidArgument,
    PluginError,
    UnsupportedCall,
)
from opmux.planning.takers import Taker, registered_ops, takers
from opmux.plugins.hookspecs import hookimpl
from opmux.plugins.loading import temporary_plugin
from opmux.plugins.prebuilding import Prebuilt, prebuilders
from opmux.plugins.reading import API_VERSION
from opmux.running.background import builds_deferred
from opmux.running.build_process import Build
from opmux.running.builds import report_build
from opmux.signatures.signature import Signature

__all__ = [
    "API_VERSION",
    "GENERATED",
    "REFUSED",
    "Absent",
    "Accumulated",
    "Aligned",
    "Alignment",
    "AnyOf",
    "Arch",
    "AtLeast",
    "AtMost",
    "BackendFault",
    "Bucket",
    "Build",
    "BuildDeferred",
    "BuildFailed",
    "Call",
    "CaptureRefused",
    "Caveat",
    "Chosen",
    "Constraint",
    "Contiguous",
    "Dtype",
    "Equal",
    "Exact",
    "Feature",
    "FeatureRule",
    "Guard",
    "Implementation",
    "InvalidArgument",
    "MaxNumel",
    "MultipleOf",
    "OneOf",
    "Op",
    "OpFunction",
    "PluginError",
    "Prebuilt",
    "Predicate",
    "Present",
    "Priority",
    "SameDtype",
    "ScaleBlock",
    "Signature",
    "StrideOrder",
    "Taker",
    "UnitStride",
    "UnsupportedCall",
    "Widened",
    "builds_deferred",
    "cpu_plays",
    "define_op",
    "device_arch",
    "hookimpl",
    "known_arch",
    "make_guard",
    "parse_arch",
    "prebuilders",
    "registered_ops",
    "report_build",
    "takers",
    "temporary_plugin",
]
