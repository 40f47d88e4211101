"""The cases of an op: made from its signature, the table of model shapes, and hypothesis.

The list depends on the op and the profile (and on whether a GPU is there), never on a backend: what a backend does
not claim counts against its coverage.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch

from opmux.errors import InvalidArgument
from opmux.op import OPS, Op
from opmux.signature import REFUSED, Option, Signature
from opmux.testing import large
from opmux.testing.case import NORMAL, PLAIN, Case, all_options, op_named, usual_dtype
from opmux.testing.memory import VIEWS
from opmux.testing.model_shapes import ModelShape
from opmux.testing.odd import draw_odd
from opmux.testing.profiles import Profile, profile_named
from opmux.testing.sizes import Dims, base_dims, changed, edge_dims, model_dims, tile_dims, zero_dims
from opmux.validation import check_call

QUANTISED = ("float8_e4m3fn", "float8_e5m2", "int8", "float8_e4m3fnuz", "float8_e5m2fnuz")

ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (1e-5, 0.1),
    "weight_offset": (1.0,),
    "scale": (0.25,),
    "softcap": (2.0,),
    "window": ((7, 0), (3, 2), (-1, 4), (0, 0)),
    "block": ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32)),
    "dtype": tuple(getattr(torch, name) for name in QUANTISED),
    "out_dtype": (torch.bfloat16, torch.float16, torch.float32),
}
"""Values of options that are tried beside the default, by name."""

TOGETHER: tuple[Mapping[str, Any], ...] = (
    {"causal": True, "window": (7, 0)},
    {"causal": True, "window": (4, 3), "softcap": 2.0},
    {"causal": True, "softcap": 2.0, "scale": 0.25},
    {"causal": False, "window": (5, 0), "scale": 0.4},
    {"block": (128, 128), "scale_major": "m"},
    {"block": (1, 32), "scale_major": "m"},
)
"""Options that are tried together."""

KINDS: dict[str, tuple[str, ...]] = {
    "block_table": ("decode", "prefill", "loose"),
    "cu_seqlens_k": ("loose",),
}
"""Special contents, by an argument that has them."""

NO_NAN = ("lse", "grad_lse", "out", "cos", "sin")
"""Arguments in which no NaN is planted: tables, and what a forward gave for other arguments."""


@functools.lru_cache(maxsize=512)
def _cases_of(op: Op, profile_name: str, gpu: bool) -> tuple[Case, ...]:
    found: dict[str, Case] = {}
    profile = profile_named(profile_name)
    for case in large.cases(op, profile) if profile.large else _all_cases(op, profile, gpu):
        if is_valid(case):
            found.setdefault(case.id, case)
    return tuple(found.values())


def cases_of(op: str, profile: str = "default", gpu: bool = False) -> tuple[Case, ...]:
    """The cases of an op.

    Args:
        op: the op's name.
        profile: the name of a profile.
        gpu: whether they will run on a GPU, where graph capture is among them.

    Raises:
        InvalidArgument: where there is no such op or profile.
    """
    return _cases_of(op_named(op), profile_named(profile).name, gpu)


def is_valid(case: Case) -> bool:
    """Whether the op's own validation takes the call."""
    signature = case.definition.signature
    shapes = case.shapes
    tensors = {
        t.name: torch.empty(shapes[t.name], dtype=case.dtypes[t.name], device="meta") if t.name in shapes else None
        for t in signature.tensors
    }
    # Integers without a default are bounds that follow from index data: any number will do here.
    options = {o.name: 1 for o in signature.options if o.kind == "int"} | all_options(signature, case)
    try:
        check_call(signature, tensors, options)
    except InvalidArgument:
        return False
    return True


def _all_cases(op: Op, profile: Profile, gpu: bool) -> Iterator[Case]:
    signature = op.signature
    base, required = base_dims(signature, profile), _required_options(signature)
    full = {t.name for t in signature.tensors}
    half, single = torch.bfloat16, torch.float32

    def case(dtype: torch.dtype = half, dims: Dims = base, given: set[str] = full, **rest: Any) -> Case:
        dtypes = _dtypes(signature, dtype, given)
        rest["options"] = {**required, **rest.get("options", {})}
        return Case(op.name, dtypes, dims, **rest)

    for dtypes in dtype_combinations(signature):
        yield Case(op.name, dtypes, base, required)
    for given in _presences(signature):
        yield from (case(dtype, given=given) for dtype in (half, single))
    for options in option_choices(signature):
        yield from (case(dtype, options=options) for dtype in (half, single))
    tile = tile_dims(signature, profile)
    if tile is not None:
        yield from (case(dtype, tile, options=o) for dtype in (half, single) for o in ({}, _causal(signature)))
    for shape, dims in model_dims(signature, profile):
        yield case(half, dims, options=_of_model(signature, shape))
    for place, dims in enumerate(edge_dims(signature, profile)):
        yield case((half, single, torch.float16)[place % 3], dims, options=_causal(signature) if place % 2 else {})
    for dims in zero_dims(signature, profile):
        yield case(single, dims)
    for view in VIEWS[1:]:
        yield from (case(dtype, view=view) for dtype in (half, single))
    for kind in _kinds(signature):
        yield from (case(dtype, data=kind) for dtype in (half, single))
    yield from _odd_cases(op, profile, required)
    yield from _probes(op, case, gpu)


def _probes(op: Op, case: Any, gpu: bool) -> Iterator[Case]:
    """The cases that look at something else than values."""
    signature = op.signature
    half, single = torch.bfloat16, torch.float32
    for tensor in signature.tensors:
        if any(d.is_floating_point for d in tensor.dtypes) and tensor.name not in NO_NAN:
            yield case(half, data=tensor.name, probe="nan")
    if not op.is_backward and any(d.is_floating_point for d in signature.tensors[0].dtypes):
        yield case(half, data=signature.tensors[0].name, probe="inf")
    if signature.takes_out:
        yield from (case(dtype, probe="out") for dtype in (half, single))
        yield case(half, probe="out", view="gapped")
    for dtype in (half, single):
        yield case(dtype, probe="repeat")
        yield case(dtype, probe="stale")
        if op.gradient != REFUSED:
            yield case(dtype, probe="gradient")
            for options in TOGETHER[:1]:
                if set(options) <= {o.name for o in signature.options}:
                    yield case(dtype, probe="gradient", options=options)
        if gpu:
            yield case(dtype, probe="capture")


def _odd_cases(op: Op, profile: Profile, required: Mapping[str, Any]) -> Iterator[Case]:
    signature = op.signature
    made: list[Case] = []
    seen: set[str] = set()
    optional = [t.name for t in signature.tensors if t.optional]

    def read(dims: Mapping[str, Any], ways: Mapping[str, Any]) -> Case:
        given = {t.name for t in signature.tensors if not t.optional or ways[f"has {t.name}"]}
        options = {o.name: ways[o.name] for o in signature.options if o.name in ways and ways[o.name] != o.default}
        dtypes = _dtypes(signature, ways["dtype of all"], given)
        return Case(op.name, dtypes, dims, {**required, **options}, view=ways["view"])

    def accept(dims: Mapping[str, Any], ways: Mapping[str, Any]) -> bool:
        drawn = read(_settled(signature, dict(dims)), ways)
        if drawn.id in seen or not is_valid(drawn):
            return False
        seen.add(drawn.id)
        made.append(drawn)
        return True

    ways: dict[str, Sequence[Any]] = {
        "view": (PLAIN, PLAIN, *VIEWS[1:]),
        "dtype of all": [d for d in _lead_dtypes(signature) if d != torch.float64] or _lead_dtypes(signature),
    }
    ways |= {f"has {name}": (True, False) for name in optional}
    ways |= {o.name: [o.default, *values] for o, values in _alternatives(signature) if not o.required}
    draw_odd(signature, profile, ways, accept)
    yield from made


def _settled(signature: Signature, dims: Dims) -> Dims:
    """Drawn dims, those changed that depend on others: else hardly any draw would be valid."""
    if "heads" in dims and "kv_heads" in dims and dims["heads"] % max(1, dims["kv_heads"]):
        dims["kv_heads"] = 1
    if "half" in dims and 2 * dims["half"] > dims.get("head_dim", 0):
        dims["half"] = max(1, dims["head_dim"] // 2)
    if "max_positions" in dims and "seq" in dims:
        dims["seq"] = min(dims["seq"], dims["max_positions"])
    return dims


def _lead_dtypes(signature: Signature) -> list[torch.dtype]:
    order = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    first = signature.tensors[0].dtypes
    return [d for d in order if d in first] or sorted(first, key=str)


def _dtypes(signature: Signature, lead: torch.dtype, given: set[str]) -> dict[str, torch.dtype]:
    return {t.name: usual_dtype(t, lead) for t in signature.tensors if t.name in given}


def dtype_combinations(signature: Signature) -> Iterator[dict[str, torch.dtype]]:
    """Every dtype of the first tensor; beside 16-bit ones, each group of others in float32, one by one and together.

    Wider operands beside narrow ones are what models have (float32 weights, residual streams, sinks). Index tensors
    come in each width.
    """
    leads = _lead_dtypes(signature)
    followers = _groups(signature)
    everything = {t.name for t in signature.tensors}
    for lead in leads:
        base = _dtypes(signature, lead, everything)
        yield base
        wider = [g for g in followers if torch.float32 in signature.tensor(g[0]).dtypes and base[g[0]].itemsize < 4]
        for some in (*([g] for g in wider), wider if len(wider) > 1 else []):
            if some:
                yield base | {name: torch.float32 for group in some for name in group}
    for tensor in signature.tensors:
        for dtype in sorted(tensor.dtypes, key=str):
            if not dtype.is_floating_point and len(tensor.dtypes) > 1:
                yield _dtypes(signature, leads[0], everything) | {tensor.name: dtype}


def _groups(signature: Signature) -> list[tuple[str, ...]]:
    """Tensors that agree in dtype, without the group of the first one."""
    found: list[tuple[str, ...]] = []
    first = signature.tensors[0].name
    grouped = {name for group in signature.same_dtype for name in group}
    for group in [*signature.same_dtype, *((t.name,) for t in signature.tensors if t.name not in grouped)]:
        floating = all(any(d.is_floating_point for d in signature.tensor(n).dtypes) for n in group)
        if first not in group and floating and len(signature.tensor(group[0]).dtypes) > 1:
            found.append(tuple(group))
    return found


def _presences(signature: Signature) -> Iterator[set[str]]:
    """Every combination of optional tensors (one by one and none at all where there are more than two)."""
    required = {t.name for t in signature.required}
    optional = [t.name for t in signature.tensors if t.optional]
    if len(optional) <= 2:
        choices = product((True, False), repeat=len(optional))
        for choice in choices:
            yield required | {name for name, there in zip(optional, choice, strict=True) if there}
        return
    yield required
    for name in optional:
        yield required | (set(optional) - {name})


def _required_options(signature: Signature) -> dict[str, Any]:
    """Options without a default that no index data decides: the first of their alternatives."""
    return {o.name: values[0] for o, values in _alternatives(signature) if o.required}


def _alternatives(signature: Signature) -> list[tuple[Option, tuple[Any, ...]]]:
    """What to try for each option beside its default."""
    found = []
    for option in signature.options:
        values: tuple[Any, ...] = ()
        if option.name in ALTERNATIVES:
            values = ALTERNATIVES[option.name]
        elif option.kind == "bool":
            values = (not option.default,) if isinstance(option.default, bool) else (False, True)
        elif option.choices:
            values = option.choices
        elif option.kind == "float" and not option.nullable:
            values = (0.5 if option.required else 2 * option.default + 0.5,)
        elif option.name == "output_mask":
            length = option.length or len(signature.outputs)
            values = tuple(tuple(i == j for j in range(length)) for i in range(length))
        elif option.kind == "bools":
            length = option.length or 1
            values = tuple(product((False, True), repeat=min(length, 3)))
        if values:
            found.append((option, tuple(v for v in values if option.required or v != option.default)))
    return [(o, v) for o, v in found if v]


def option_choices(signature: Signature) -> Iterator[dict[str, Any]]:
    """Each alternative of each option by itself, then some together."""
    for option, values in _alternatives(signature):
        for value in values:
            yield {option.name: value}
    names = {o.name for o in signature.options}
    for together in TOGETHER:
        if set(together) <= names:
            yield {n: v for n, v in together.items() if v != next(o for o in signature.options if o.name == n).default}


def _causal(signature: Signature) -> dict[str, Any]:
    """Options that put a mask on what has one and is not masked by default."""
    return {"causal": True} if any(o.name == "causal" and o.default is False for o in signature.options) else {}


def _of_model(signature: Signature, shape: ModelShape) -> dict[str, Any]:
    """The options that a model uses."""
    names = {o.name for o in signature.options}
    wanted: dict[str, Any] = _causal(signature)
    if shape.window != -1:
        wanted["window"] = (shape.window, 0)
    if shape.softcap:
        wanted["softcap"] = shape.softcap
    if shape.weight_offset:
        wanted["weight_offset"] = shape.weight_offset
    return {name: value for name, value in wanted.items() if name in names}


def _kinds(signature: Signature) -> Iterator[str]:
    for argument, kinds in KINDS.items():
        if any(t.name == argument for t in signature.tensors):
            yield from kinds


__all__ = ["NORMAL", "OPS", "cases_of", "changed", "dtype_combinations", "is_valid", "option_choices"]
