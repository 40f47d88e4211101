"""What the measured rows of one op say of a call: measured at its very point, or predicted from rows near it.

Dtypes, flags, ``head_dim`` and the like are no sizes: rows where they are equal come first. Where there are none, rows
of calls like this one count: of another mask, of the other 16-bit float, of a near ``head_dim``, of the op's variant
with an lse or in place. Sizes may differ, in steps; the choice is made for the end of a step, so that it does not
depend on which call of the step came first, and ranks decide alike.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from opmux.arch import arch_of
from opmux.callpath.names import shape_name
from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.features import Feature, size_source
from opmux.signatures.dims import Affine
from opmux.signatures.signature import Option, Signature, TensorArgument
from opmux.tuning.estimates import Estimate, Estimates
from opmux.tuning.matching import matching_of
from opmux.tuning.measured.device import DeviceModel, device_of
from opmux.tuning.measured.row import MeasuredRow
from opmux.tuning.neighbours import LIMIT, Group
from opmux.tuning.steps import Steps
from opmux.tuning.table import changing_size_source, runs_here, tuple_source
from opmux.tuning.work import Work

UNLIKE = frozenset({"head_dim", "value_dim", "page_size", "half"})
"""Dims that decide which kernel runs: they are not interpolated."""

NEAR_UNLIKE = 1.0
"""Octaves by which such dims may differ in calls that are like each other, in all."""

TIMED_NUMBERS = frozenset({"softcap"})
"""Numbers that cost time where they are not 0, whatever their value. Others (``eps``, ``scale``) cost none."""


class OpTimes:
    """The measured rows of one op that are in force.

    Attributes:
        op: the op.
        rows: the rows.
        variants: rows of the op's variants.
        steps: how each size that changes from call to call is rounded, in the plan key too.
        model: the dims of the model that are sizes.
        flags: the options that must be equal.
    """

    def __init__(self, op: Op, rows: Iterable[MeasuredRow], variants: Iterable[MeasuredRow] = ()) -> None:
        self.op = op
        self.rows, self.variants = tuple(rows), tuple(variants)
        matching = matching_of(op)
        self.model = tuple(name for name in matching.exact if name not in UNLIKE)
        self.flags = tuple(o for o in op.signature.options if o in matching.fixed or _costs_time(o))
        self.steps = {
            name: Steps(
                {row.dims[name] if name in row.dims else row.options[name] for row in self.rows},
                len(_bound_by(op.signature, name).shape.dims) if name in op.signature.stars else 0,
            )
            for name in matching.nearest
        }
        self._unlike = tuple(name for name in matching.exact if name in UNLIKE)
        self._sizes = (*self.steps, *self.model)
        # What is read or written by rows. A vector has none: heads, which the sinks of attention have, align nothing.
        # Nor do blocks that have scales: 20 of them are like 32, but unlike one.
        scales = [t.shape for t in op.signature.tensors if t.name.endswith("scale")]
        shapes = [t.shape for t in op.signature.tensors if not t.name.endswith("scale")]
        shapes += [o.shape for o in op.signature.outputs]
        innermost, blocks = (
            {_innermost(shape.dims) for shape in some if len(shape.dims) > 1 or shape.star} for some in (shapes, scales)
        )
        self._aligned = tuple(name for name in self.model if name in innermost)
        self._blocks = tuple(name for name in self.model if name in blocks - innermost)
        self._kept = [place for place, o in enumerate(self.flags) if o.kind == "dtype"]
        self._groups: dict[tuple[Kind, DeviceModel | None, bool], Group | None] = {}
        self._alike: dict[Kind, list[tuple[bool, Kind]]] = {}
        self._works: dict[Kind, Work] = {}

    def estimates(self, call: Call, device: DeviceModel | None = None) -> Estimates:
        """A time for each implementation that has rows near this call; nothing where a size is 0.

        Args:
            call: the call.
            device: the device model that it would run on; by default that of its tensors.
        """
        sizes = {name: int(call.size(name) or 0) for name in self._sizes}
        if min(sizes.values(), default=1) < 1:
            return Estimates()
        sizes |= {name: steps[sizes[name]] for name, steps in self.steps.items()}
        at = {**call.options, **{name: call.size(name) for name in call.dims}, **sizes}
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in call.tensors.values())
        device = device or _device_of(call)
        times: dict[str, Estimate] = {}
        far: dict[str, float] = {}
        kind = self._kind(call.arch.name, dtypes, at)
        if (group := self._group_of(kind, device)) is not None:
            group.estimate(at, times, far)
        if not times:
            work = self._work_of(kind, call)
            for variant, like in self._like(kind):
                if (group := self._group_of(like, device, variant)) is not None:
                    group.estimate(at, times, far, work)
                if times:
                    break
        return Estimates(times, {name: octaves for name, octaves in far.items() if name not in times}, LIMIT)

    def features(self, prefix: str) -> tuple[tuple[Feature, ...], dict[str, Steps]]:
        """The features that the choice depends on, for the op's plan key, and the names that they read.

        Sizes that change from call to call are in the key by their steps; dims of the model and flags as they are. Only
        archs that this build of torch cannot run are omitted: a key does not contain the arch.

        Args:
            prefix: what the names begin with.
        """
        if not any(runs_here(arch) for arch in {row.machine.arch for row in (*self.rows, *self.variants)}):
            return (), {}
        signature = self.op.signature
        bound = {f"{prefix}_{place}": steps for place, steps in enumerate(self.steps.values())}
        made = [
            # A star dim is looked up by the whole shape, which the call path has read: cheaper than a slice of it.
            Feature(
                f"steps({name})",
                f"{prefix}_{place}[{shape_name(_bound_by(signature, name).name)}]"
                if name in signature.stars
                else f"{prefix}_{place}[{changing_size_source(signature, name)}]",
            )
            for place, name in enumerate(self.steps)
        ]
        made += [Feature(name, size_source(signature, name)) for name in (*self.model, *self._unlike)]
        made += [
            Feature(f"no {o.name}", f"(not {o.name})") if o.name in TIMED_NUMBERS else Feature(o.name, tuple_source(o))
            for o in self.flags
            if not o.is_flag
        ]
        return tuple(made), bound

    def _kind(self, arch: str, dtypes: tuple[torch.dtype | None, ...], at: Mapping[str, Any]) -> "Kind":
        """The kind of a call or row."""
        flags = tuple(bool(at[o.name]) if o.name in TIMED_NUMBERS else at[o.name] for o in self.flags)
        unlike = tuple(int(at[name]) for name in self._unlike)
        aligned = [at[name] % 8 == 0 for name in self._aligned] + [at[name] > 1 for name in self._blocks]
        return Kind(arch, dtypes, flags, unlike, tuple(aligned))

    def _group_of(self, kind: "Kind", device: DeviceModel | None, variant: bool = False) -> Group | None:
        """The rows of a kind for calls on a device model: indexed when a call that needs them is first planned."""
        key = (kind, device, variant)
        if key not in self._groups:
            self._groups[key] = None
            if rows := (self._variants_by_kind if variant else self._by_kind).get(kind):
                fastest = self._fastest[kind.arch]
                self._groups[key] = Group(self.op, tuple(self.steps), self.model, rows, device, fastest)
        return self._groups[key]

    def _like(self, kind: "Kind") -> Sequence[tuple[bool, "Kind"]]:
        """Kinds that have rows and are like this one, the most alike first; True for those of the op's variants."""
        if kind not in self._alike:
            found = [
                (variant, apart, other)
                for variant, rows in ((False, self._by_kind), (True, self._variants_by_kind))
                for other in rows
                if (apart := kind.apart(other, self._kept)) is not None
            ]
            found.sort(key=lambda each: (each[1][0], each[0], each[1], repr(each[2])))
            self._alike[kind] = [(variant, other) for variant, _, other in found]
        return self._alike[kind]

    def _work_of(self, kind: "Kind", call: Call) -> Work:
        """The work of calls of a kind."""
        if kind not in self._works:
            dtypes = {name: tensor.dtype for name, tensor in call.tensors.items() if tensor is not None}
            self._works[kind] = Work(self.op, dtypes, call.options)
        return self._works[kind]

    @functools.cached_property
    def _fastest(self) -> dict[str, dict[str, float]]:
        """Arch -> implementation -> the time of its fastest row."""
        found: dict[str, dict[str, float]] = {}
        for row in (*self.rows, *self.variants):
            times = found.setdefault(row.machine.arch, {})
            times[row.implementation] = min(row.time_us, times.get(row.implementation, row.time_us))
        return found

    @functools.cached_property
    def _by_kind(self) -> "dict[Kind, list[MeasuredRow]]":
        return self._sorted(self.rows)

    @functools.cached_property
    def _variants_by_kind(self) -> "dict[Kind, list[MeasuredRow]]":
        return self._sorted(self.variants)

    def _sorted(self, rows: Iterable[MeasuredRow]) -> "dict[Kind, list[MeasuredRow]]":
        signature = self.op.signature
        defaults = {o.name: o.default for o in signature.options}
        found: dict[Kind, list[MeasuredRow]] = {}
        for row in rows:
            dtypes = tuple(row.dtypes.get(t.name) for t in signature.tensors)
            kind = self._kind(row.machine.arch, dtypes, {**defaults, **row.options, **row.dims})
            found.setdefault(kind, []).append(row)
        return found


class Kind(NamedTuple):
    """What must be equal for a time to be interpolated between rows.

    Attributes:
        dtypes: of every tensor, None for an absent one.
        flags: the values of the op's flags.
        unlike: the dims of `UNLIKE`.
        aligned: whether rows hold whole 8 elements, of each innermost dim, and several scales, of each dim of blocks.
    """

    arch: str
    dtypes: tuple[torch.dtype | None, ...]
    flags: tuple[Any, ...]
    unlike: tuple[int, ...]
    aligned: tuple[bool, ...]

    def apart(self, other: "Kind", kept: Sequence[int]) -> tuple[float, int, int] | None:
        """How unlike two kinds are: octaves of ``unlike``, flags, dtypes; None where they have nothing in common.

        Args:
            other: the other kind.
            kept: the places of flags that must be equal all the same.
        """
        if (self.arch, self.aligned) != (other.arch, other.aligned):
            return None
        if any(self.flags[place] != other.flags[place] for place in kept):
            return None
        pairs = list(zip(self.dtypes, other.dtypes, strict=True))
        if any(_wide(one) != _wide(another) for one, another in pairs):
            return None
        octaves = sum(abs(math.log2(a / b)) for a, b in zip(self.unlike, other.unlike, strict=True) if a and b)
        if octaves > NEAR_UNLIKE:
            return None
        flags = sum(a != b for a, b in zip(self.flags, other.flags, strict=True))
        return octaves, flags, sum(a != b for a, b in pairs)


def variants_of(op: Op, ops: Mapping[str, Op]) -> Iterator[str]:
    """The ops that compute the same by the same kernels: in place, or with what a gradient needs, and the reverse."""
    for other in ops.values():
        linked = other.name in (op.in_place_of, op.gradient_through) or op.name in (
            other.in_place_of,
            other.gradient_through,
        )
        if linked and other.signature.binders.keys() == op.signature.binders.keys():
            yield other.name


def _wide(dtype: torch.dtype | None) -> torch.dtype | None:
    """A dtype, or float16 for the two that hardware computes alike."""
    return torch.float16 if dtype == torch.bfloat16 else dtype


def _bound_by(signature: Signature, name: str) -> TensorArgument:
    """The tensor whose shape binds a dim."""
    return signature.tensor(signature.binders[name])


def _costs_time(option: Option) -> bool:
    return option.kind == "bools" or option.name in TIMED_NUMBERS


def _innermost(dims: Sequence[Any]) -> str | None:
    last = dims[-1] if dims else None
    return last.name if isinstance(last, Affine) else None


def _device_of(call: Call) -> DeviceModel | None:
    """The device model that a call runs on; None where explain asks for an arch without its device."""
    device = next(iter(call.tensors.values())).device
    return device_of(device) if device.type != "meta" and arch_of(device) == call.arch else None
