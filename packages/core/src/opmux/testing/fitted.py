"""Cases fitted to a backend: for each case that it does not claim, the nearest one that it does.

`opmux.testing.cases` makes one list for every backend, and what a backend does not claim is a skip. A backend for
float32 alone would therefore be tested on little. Here each such case is changed until an implementation's declared
constraints hold: other dtypes, sizes, options and optional tensors. Further cases are at the edges of its constraints
on sizes.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from opmux.arch import Arch, arch_of
from opmux.callpath.op import Op
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
    Present,
    SameDtype,
)
from opmux.declared.implementation import Implementation
from opmux.planning import resolver
from opmux.planning.plan import circumstances
from opmux.running.attempt import attempt_of
from opmux.testing import execution
from opmux.testing.case import PLAIN, Case, all_options, op_named, usual_dtype, without_idle_scales
from opmux.testing.cases import cases_of, data_counts, is_valid
from opmux.testing.memory import view_strides
from opmux.testing.profiles import Profile, profile_named

PLANTED = ("nan", "inf", "-inf", "magnitude")
"""Probes that put a number into a tensor which integers do not have."""

LARGEST_EDGE = 1 << 16
"""The largest size at which an upper bound is tried; a smaller profile stops at 64 times its own limit."""

PAST = 128
"""Multiples of a declared number are tried just past this."""

_Size = AtLeast | AtMost | MultipleOf | OneOf


def cases_for(backend: str, op: str, profile: str, device: torch.device) -> tuple[Case, ...]:
    """The cases of an op, followed by those fitted to what the backend declares.

    Raises:
        InvalidArgument: If there is no such op or profile.
    """
    named, settings = op_named(op), profile_named(profile)
    cases = cases_of(op, profile, device.type == "cuda")
    declared = execution.implementations(named, backend)
    if settings.large or all(not i.when for i in declared):
        return _selected(named, backend, cases, settings, arch_of(device))
    implementations = [alternative for i in declared for alternative in alternatives(i)]
    arch = arch_of(device)
    found = {case.id: case for case in cases}
    for case in cases:
        if not is_claimed(named, backend, case, arch):
            for fit in _fits(named, backend, implementations, case, arch):
                found.setdefault(fit.id, fit)
    for case in _edges(named, settings, cases, implementations):
        for fit in _fits(named, backend, implementations, case, arch):
            found.setdefault(fit.id, fit)
    return _selected(named, backend, tuple(found.values()), settings, arch)


def _selected(op: Op, backend: str, cases: tuple[Case, ...], profile: Profile, arch: Arch) -> tuple[Case, ...]:
    """The cases that the profile runs: all, or ``most`` of the claimed ones, evenly spread, the first among them."""
    if not profile.most:
        return cases
    claimed = [case for case in cases if is_claimed(op, backend, case, arch)]
    count = min(profile.most, len(claimed))
    return tuple(claimed[place * len(claimed) // count] for place in range(count))


_FITTABLE = (Absent, AtLeast, AtMost, Dtype, Equal, MultipleOf, OneOf, Present, SameDtype)


def alternatives(implementation: Implementation) -> list[Implementation]:
    """The implementation with one choice from each `AnyOf` in its place, in every combination that changes cases."""
    found: dict[str, Implementation] = {}
    for when in itertools.product(*map(_choices, implementation.when)):
        fittable = tuple(constraint for chosen in when for constraint in chosen)
        found.setdefault(repr(fittable), dataclasses.replace(implementation, when=fittable))
    return list(found.values())


def _choices(constraint: Constraint) -> list[tuple[Constraint, ...]]:
    """The constraints of which one must hold; one that no case is fitted to counts as nothing to do."""
    if isinstance(constraint, AnyOf):
        return [choice for inner in constraint.constraints for choice in _choices(inner)]
    return [(constraint,) if isinstance(constraint, _FITTABLE) else ()]


def is_claimed(op: Op, backend: str, case: Case, arch: Arch) -> bool:
    """Whether the backend takes the case, judged on tensors without contents."""
    tensors: list[Any] = []
    for argument in op.signature.tensors:
        shape = case.shapes.get(argument.name)
        if shape is None:
            tensors.append(None)
            continue
        dtype = case.dtypes[argument.name]
        strides = view_strides(shape, case.view if dtype.is_floating_point else PLAIN)
        tensors.append(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
    options = data_counts(case, 16) | all_options(op.signature, case)
    attempt = attempt_of(op, op.state, tensors, options, arch=arch)
    around = dataclasses.replace(circumstances(attempt), forced=backend)
    return bool(resolver.resolve(attempt.call, op.implementations, around).accepted)


def _fits(op: Op, backend: str, implementations: Sequence[Implementation], case: Case, arch: Arch) -> Iterator[Case]:
    """The case fitted to each implementation; one that cannot be is left out."""
    for implementation in implementations:
        fit = fitted(op, implementation, case)
        for view in dict.fromkeys((fit.view, PLAIN)):
            candidate = dataclasses.replace(fit, view=view)
            if _means_something(candidate) and is_valid(candidate) and is_claimed(op, backend, candidate, arch):
                yield candidate
                break


def _means_something(case: Case) -> bool:
    """Whether the tensor that the probe is about is still given, and can hold the number that is planted."""
    if case.data not in {t.name for t in case.definition.signature.tensors}:
        return True
    dtype = case.dtypes.get(case.data)
    return dtype is not None and (dtype.is_floating_point or case.probe not in PLANTED)


def fitted(op: Op, implementation: Implementation, case: Case) -> Case:
    """Change a case as little as possible so that the constraints declared as data hold."""
    signature = op.signature
    first = signature.tensors[0].name
    dtypes, options, dims = dict(case.dtypes), dict(case.options), dict(case.dims)
    for constraint in implementation.when:
        if isinstance(constraint, Absent):
            dtypes.pop(constraint.argument, None)
        elif isinstance(constraint, Present) and constraint.argument not in dtypes:
            dtypes[constraint.argument] = usual_dtype(signature.tensor(constraint.argument), dtypes[first])
    taken = {c.argument: _dtypes_of(c) for c in implementation.when if isinstance(c, Dtype)}
    if dtypes[first] not in taken.get(first, (dtypes[first],)):
        lead = _nearest_dtype(dtypes[first], taken[first])
        dtypes = {name: usual_dtype(signature.tensor(name), lead) for name in dtypes} | {first: lead}
    for name, allowed in taken.items():
        if name in dtypes and dtypes[name] not in allowed:
            dtypes[name] = dtypes[first] if dtypes[first] in allowed else _nearest_dtype(dtypes[name], allowed)
        elif any(o.name == name for o in signature.options) and options.get(name) not in allowed:
            options[name] = allowed[0]
    for constraint in implementation.when:
        if isinstance(constraint, SameDtype):
            given = [name for name in constraint.arguments if name in dtypes]
            dtypes |= dict.fromkeys(given, dtypes[given[0]])
    for name, scale in signature.scales.items():
        if name in dtypes and dtypes[name].itemsize == 1 and name in case.dtypes and case.dtypes[name].itemsize > 1:
            dtypes[scale] = usual_dtype(signature.tensor(scale), dtypes[first])
    dtypes = without_idle_scales(signature, dtypes)
    for name, size in dims.items():
        wanted = _fitted_size(_count(size), _sizes_of(implementation, name, dims))
        if wanted != _count(size):
            dims[name] = (wanted,) if isinstance(size, tuple) else wanted
    for constraint in implementation.when:
        if isinstance(constraint, Equal) and {constraint.first, constraint.second} <= set(dims):
            dims[constraint.second] = dims[constraint.first]
    for option in signature.options:
        constraints = _sizes_of(implementation, option.name, dims)
        value = options.get(option.name, option.default)
        fit = _fitted_option(value, constraints)
        if fit != value:
            options[option.name] = fit
    return Case(case.op, _in_order(op, dtypes), dims, options, case.view, case.data, case.probe)


def _in_order(op: Op, dtypes: dict[str, torch.dtype]) -> dict[str, torch.dtype]:
    return {t.name: dtypes[t.name] for t in op.signature.tensors if t.name in dtypes}


def _dtypes_of(constraint: Dtype) -> tuple[torch.dtype, ...]:
    return tuple(getattr(torch, name) for name in constraint.dtypes)


def _nearest_dtype(dtype: torch.dtype, allowed: Sequence[torch.dtype]) -> torch.dtype:
    """The first allowed dtype of the same width, or else the one of the nearest width."""
    return min(allowed, key=lambda other: abs(other.itemsize - dtype.itemsize))


def _sizes_of(implementation: Implementation, name: str, dims: Mapping[str, Any]) -> list[_Size]:
    """The constraints on one size; a bound that is another dim is replaced by that dim's size."""
    found: list[_Size] = []
    for constraint in implementation.when:
        if isinstance(constraint, OneOf) and constraint.name == name:
            found.append(constraint)
        elif isinstance(constraint, (AtLeast, AtMost, MultipleOf)) and constraint.name == name:
            bound = constraint.bound
            if not isinstance(bound, str):
                found.append(constraint)
            elif bound in dims:
                found.append(type(constraint)(name, _count(dims[bound])))
    return found


def _count(size: Any) -> int:
    """A dim's size; a star dim's product."""
    return math.prod(size) if isinstance(size, tuple) else int(size)


def _bounds(constraints: Sequence[_Size], kind: type[AtLeast | AtMost | MultipleOf]) -> list[float]:
    return [c.bound for c in constraints if isinstance(c, kind) and not isinstance(c.bound, str)]


def _fitted_size(size: int, constraints: Sequence[_Size]) -> int:
    """The nearest size that the constraints allow, rounded up if there is a choice; 0 stays 0 if allowed."""
    for constraint in constraints:
        if isinstance(constraint, OneOf):
            values = [v for v in constraint.values if isinstance(v, int)]
            size = min(values, key=lambda v: (abs(v - size), -v)) if values else size
    step = math.lcm(*map(int, _bounds(constraints, MultipleOf)))
    least = math.ceil(max(_bounds(constraints, AtLeast), default=0))
    most = min(map(math.floor, _bounds(constraints, AtMost)), default=None)
    size = -(-max(size, least) // step) * step
    return size if most is None or size <= most else most // step * step


def _fitted_option(value: Any, constraints: Sequence[_Size]) -> Any:
    for constraint in constraints:
        if isinstance(constraint, OneOf):
            value = value if value in constraint.values else constraint.values[0]
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and not isinstance(constraint.bound, str):
            if isinstance(constraint, AtMost):
                value = min(value, constraint.bound)
            elif isinstance(constraint, AtLeast):
                value = max(value, constraint.bound)
    return value


def _edges(
    op: Op, profile: Profile, cases: Sequence[Case], implementations: Sequence[Implementation]
) -> Iterator[Case]:
    """Cases whose sizes are at the edges of what implementations declare, one dim at a time, in two dtypes."""
    base = cases[0]
    for implementation in implementations:
        for name, size in base.dims.items():
            for edge in edge_sizes(_sizes_of(implementation, name, base.dims), profile):
                dims = {**base.dims, name: (edge,) if isinstance(size, tuple) else edge}
                yield dataclasses.replace(base, dims=dims)
                lead = op.signature.tensors[0]
                if torch.float32 in lead.dtypes:
                    dtypes = {n: usual_dtype(op.signature.tensor(n), torch.float32) for n in base.dtypes}
                    yield dataclasses.replace(base, dims=dims, dtypes=dtypes)


def edge_sizes(constraints: Sequence[_Size], profile: Profile) -> list[int]:
    """The sizes at the edges of constraints on one dim: for ``MultipleOf(4)`` these are 4, 12 and 132."""
    wanted: list[int] = []
    limit = min(LARGEST_EDGE, 64 * max(profile.odd_limit, 1))
    for step in map(int, _bounds(constraints, MultipleOf)):
        wanted += [step, 3 * step] + ([(PAST // step + 1) * step] if limit // 16 > PAST else [])
    for constraint in constraints:
        if isinstance(constraint, OneOf):
            wanted += [v for v in constraint.values if isinstance(v, int) and not isinstance(v, bool)]
    for bound in (*_bounds(constraints, AtLeast), *_bounds(constraints, AtMost)):
        wanted.append(math.floor(bound))
    sizes = [_fitted_size(size, constraints) for size in wanted if 0 < size <= limit]
    return list(dict.fromkeys(size for size in sizes if size > 0))
