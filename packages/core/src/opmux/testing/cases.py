"""The cases of an op: made from its signature, the table of model shapes, and hypothesis.

The list depends on the op and the profile (and on whether a GPU is there), never on a backend: what a backend does
not claim counts against its coverage.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.errors import InvalidArgument
from opmux.signatures.signature import REFUSED, Signature
from opmux.signatures.validation import check_call
from opmux.testing import choices, large
from opmux.testing.case import PLAIN, Case, all_options, op_named
from opmux.testing.memory import VIEWS
from opmux.testing.model_shapes import ModelShape
from opmux.testing.odd import draw_odd
from opmux.testing.profiles import Profile, profile_named
from opmux.testing.sizes import Dims, base_dims, edge_dims, model_dims, tile_dims, zero_dims

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
    base, required = base_dims(signature, profile), choices.required_options(signature)
    full = {t.name for t in signature.tensors}
    half, single = torch.bfloat16, torch.float32

    def case(dtype: torch.dtype = half, dims: Dims = base, given: set[str] = full, **rest: Any) -> Case:
        dtypes = choices.dtypes(signature, dtype, given)
        rest["options"] = {**required, **rest.get("options", {})}
        return Case(op.name, dtypes, dims, **rest)

    for dtypes in choices.dtype_combinations(signature):
        yield Case(op.name, dtypes, base, required)
    for given in choices.presences(signature):
        yield from (case(dtype, given=given) for dtype in (half, single))
    for options in choices.option_choices(signature):
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
        if signature.mutates and "slot_mapping" in {t.name for t in signature.tensors}:
            yield case(dtype, probe="rubbish")
        if op.gradient != REFUSED:
            yield case(dtype, probe="gradient")
            for options in choices.TOGETHER[:1]:
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
        dtypes = choices.dtypes(signature, ways["dtype of all"], given)
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
        "dtype of all": [d for d in choices.lead_dtypes(signature) if d != torch.float64]
        or choices.lead_dtypes(signature),
    }
    ways |= {f"has {name}": (True, False) for name in optional}
    ways |= {o.name: [*([] if o.required else [o.default]), *v] for o, v in choices.alternatives(signature)}
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
