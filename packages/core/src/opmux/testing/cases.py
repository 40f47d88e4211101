"""The cases of an op: made from its signature, the table of model shapes, and hypothesis.

The list depends on the op and the profile (and on whether a GPU is available), never on a backend: what a backend does
not claim counts against its coverage. `opmux.testing.fitted` adds cases that a backend does claim.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from opmux.callpath.op import Op
from opmux.errors import InvalidArgument
from opmux.signatures.signature import REFUSED, Signature
from opmux.signatures.validation import check_call
from opmux.testing import choices, coded, large
from opmux.testing.case import NORMAL, PLAIN, VALUES, Case, all_options, op_named
from opmux.testing.contents import ALL_CODES, ZEROS, special_contents
from opmux.testing.memory import VIEWS
from opmux.testing.model_shapes import ModelShape
from opmux.testing.odd import draw_odd
from opmux.testing.patterns import PATTERNS
from opmux.testing.profiles import Profile, profile_named
from opmux.testing.sequences import LONG
from opmux.testing.sizes import (
    PRODUCT_BLOCKS,
    Dims,
    base_dims,
    changed,
    edge_dims,
    long_dims,
    model_dims,
    output_layer_dims,
    product_sums,
    scaled,
    spread_dims,
    tile_dims,
    zero_dims,
)

ORDINARY = ("lse", "grad_lse", "out", "cos", "sin")
"""Arguments that hold no special numbers: tables, and results of a forward on other arguments."""


@functools.lru_cache(maxsize=512)
def _cases_of(op: Op, profile_name: str, gpu: bool, contents: tuple[str, ...]) -> tuple[Case, ...]:
    profile = profile_named(profile_name)
    found = {c.id: c for c in _cases_of(op, profile.contains, gpu, contents)} if profile.contains else {}
    made = large.cases(op, profile) if profile.large else _all_cases(op, profile, gpu, contents)
    for place, unscaled in enumerate(made):
        case = dataclasses.replace(unscaled, dims=scaled(op.signature, unscaled.dims, place))
        if is_valid(case):
            found.setdefault(case.id, case)
    return tuple(found.values())


def cases_of(op: str, profile: str = "default", gpu: bool = False) -> tuple[Case, ...]:
    """The cases of an op.

    Args:
        op: the op's name.
        profile: the name of a profile.
        gpu: whether they will run on a GPU, which adds graph capture.

    Raises:
        InvalidArgument: If there is no such op or profile.
    """
    named = op_named(op)
    return _cases_of(named, profile_named(profile).name, gpu, special_contents(named))


def gradient_case(op: str) -> Case | None:
    """The case that checks the op's backward against the derivative of its reference; None if there is none."""
    if op_named(op).gradient == REFUSED:
        return None
    lead = op_named(op).signature.tensors[0]
    plain = [c for c in cases_of(op, "small") if (c.view, c.data, c.probe) == (PLAIN, NORMAL, VALUES)]
    wide = [c for c in plain if c.dtypes[lead.name] in (SINGLE, torch.float64)]
    return dataclasses.replace((wide or plain)[0], probe="autograd")


def is_valid(case: Case) -> bool:
    """Whether the op's own validation accepts the call."""
    signature = case.definition.signature
    shapes = case.shapes
    tensors = {
        t.name: torch.empty(shapes[t.name], dtype=case.dtypes[t.name], device="meta") if t.name in shapes else None
        for t in signature.tensors
    }
    options = data_counts(case, 1) | all_options(signature, case)
    try:
        check_call(signature, tensors, options)
    except InvalidArgument:
        return False
    return True


def data_counts(case: Case, number: int) -> dict[str, int]:
    """A value for each integer option without a default, where the contents of tensors are not known yet.

    They are bounds that follow from index data, so ``number`` will do; how many scales are packed in a row has to fit.
    """
    counts = {o.name: number for o in case.definition.signature.options if o.kind == "int"}
    if "k_blocks" in counts:
        counts["k_blocks"] = 4 * case.dims["words"]
    return counts


SEVERAL = (2, 3, 2)
"""Leading dims whose permuted rows lie at three distances."""

HALF, SINGLE = torch.bfloat16, torch.float32
"""The dtypes of special cases."""


def _all_cases(op: Op, profile: Profile, gpu: bool, contents: Sequence[str]) -> Iterator[Case]:
    signature = op.signature
    base, required = base_dims(signature, profile), choices.required_options(signature)
    full = {t.name for t in signature.tensors}
    half, single = HALF, SINGLE

    def case(dtype: torch.dtype = half, dims: Dims = base, given: set[str] = full, **rest: Any) -> Case:
        dtypes = choices.dtypes(signature, dtype, given)
        rest["options"] = {**required, **rest.get("options", {})}
        return Case(op.name, dtypes, dims, **rest)

    for dtypes in choices.dtype_combinations(signature):
        yield Case(op.name, dtypes, base, required)
    yield from coded.cases(op, profile, gpu)
    for given in choices.presences(signature):
        yield from (case(dtype, given=given) for dtype in (half, single))
    needed = {t.name for t in signature.tensors if not t.optional}
    for options in choices.option_choices(signature):
        for made in (case(dtype, options=options) for dtype in (half, single)):
            # Some options go only without some optional tensors.
            yield (
                made if is_valid(made) else case(made.dtypes[signature.tensors[0].name], given=needed, options=options)
            )
    tile = tile_dims(signature, profile)
    if tile is not None:
        yield from (case(dtype, tile, options=o) for dtype in (half, single) for o in ({}, _causal(signature)))
    for shape, dims in model_dims(signature, profile):
        yield case(half, dims, options=_of_model(signature, shape))
    for shape, dims in model_dims(signature, profile) if profile.doubled else ():
        yield case(single, dims, options=_of_model(signature, shape))
    uneven = output_layer_dims(signature, profile)
    if uneven is not None:
        yield case(half, uneven)
    sums = product_sums(signature, base, bool(profile.tile))
    if sums is not None:
        for _ in PRODUCT_BLOCKS:
            yield case(half, sums, options={"out_dtype": single} if signature.outputs else {})
    for place, dims in enumerate(edge_dims(signature, profile)):
        options = _causal(signature) if place % 2 else {}
        yield case((half, single, torch.float16)[place % 3], dims, options=options)
        if profile.doubled:
            yield case((single, half, single)[place % 3], dims, options=options)
    for place, dims in enumerate(spread_dims(signature, profile)):
        yield case(
            (single, half)[place % 2], _settled(signature, dims), options=_causal(signature) if place % 4 > 1 else {}
        )
    for dims in zero_dims(signature, profile):
        yield case(single, dims)
    for view in VIEWS[1:]:
        yield from (case(dtype, view=view) for dtype in (half, single))
    for dims in changed(signature, profile, {"*tokens": SEVERAL, "*batch": SEVERAL}):
        yield case(half, dims, view="permuted")
    yield from _long_contexts(signature, profile, case, gpu)
    for place, word in enumerate(contents if not profile.contains else ()):
        if profile.doubled or word not in PATTERNS:
            yield from (case(dtype, data=word) for dtype in (half, single))
        else:
            yield case((half, single)[place % 2], data=word)
    yield from _odd_cases(op, profile, required)
    yield from _special_numbers(op, profile, case)
    yield from _probes(op, case, gpu)
    if not profile.contains:
        yield from _zero_blocks(signature, case)
        yield from _all_codes(signature, case)


def _zero_blocks(signature: Signature, case: Any) -> Iterator[Case]:
    """Blocks of zeros and of very small numbers, for ops that make a scale for each block, of every kind."""
    if "block" not in {o.name for o in signature.options}:
        return
    for place, block in enumerate(choices.ALTERNATIVES["block"]):
        yield case((SINGLE, HALF)[place % 2], data=ZEROS, options={"block": block})
    yield case(HALF, data=ZEROS, options={"dtype": torch.int8})


def _all_codes(signature: Signature, case: Any) -> Iterator[Case]:
    """Every code of int8, also the one below the symmetric range, and of 8-bit floats where there is one operand."""
    operands = [t.name for t in signature.tensors if torch.int8 in t.dtypes and t.name not in signature.scales]
    if not operands:
        return
    for codes in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)[: 3 if len(operands) == 1 else 1]:
        made = case(codes if signature.tensors[0].name in operands else SINGLE, data=ALL_CODES)
        yield dataclasses.replace(made, dtypes={**made.dtypes, **dict.fromkeys(operands, codes)})


def _long_contexts(signature: Signature, profile: Profile, case: Any, gpu: bool) -> Iterator[Case]:
    """Sequences of which kernels divide the keys among programs, and join the results in a second launch."""
    window = {**_causal(signature), "window": (7 * profile.context // 8, -1), "softcap": 2.0}
    for place, dims in enumerate(long_dims(signature, profile)):
        yield from (case(dtype, dims, data=LONG) for dtype in (HALF, SINGLE))
        if not place:
            yield case(HALF, dims, data=LONG, options=window)
            yield from (
                case(HALF, dims, data=LONG, probe=probe) for probe in ("repeat", *(("capture",) if gpu else ()))
            )


def _special_numbers(op: Op, profile: Profile, case: Any) -> Iterator[Case]:
    """NaN, infinities and large numbers in each argument that may hold any number.

    A contained profile already has all of them, so this one adds only those that depend on sizes.
    """
    names = [
        t.name for t in op.signature.tensors if any(d.is_floating_point for d in t.dtypes) and t.name not in ORDINARY
    ]
    names = [name for name in names if name not in op.signature.scales.values()]  # `coded` has these
    for name in names:
        yield case(HALF, data=name, probe="nan")
    if profile.contains:
        yield from (case(HALF, data=name, probe="inf") for name in names[:1])
        return
    for name in names:
        # Codes are drawn over the whole range of their dtype: none can be larger.
        codes = all(d.itemsize == 1 for d in op.signature.tensor(name).dtypes)
        # The sign of an infinite scale times a sum near zero is a matter of roundings.
        infinities = () if name.endswith("_scale") else ("inf", "-inf")
        for place, probe in enumerate(("nan", *infinities, *(() if codes else ("magnitude",)))):
            dtypes = (HALF, SINGLE) if profile.doubled else ((HALF, SINGLE)[place % 2],)
            yield from (case(dtype, data=name, probe=probe) for dtype in dtypes)
    if "logits" in names:  # a masked class has a share in the loss by the smoothing alone
        smoothed = {"label_smoothing": 0.1}
        yield from (case(dtype, data="logits", probe="-inf", options=smoothed) for dtype in (HALF, SINGLE))
    masked = _causal(op.signature)
    for name in names if masked else ():  # in keys that are masked out for some queries, and in such queries
        yield from (case(dtype, data=name, probe="nan", options=masked) for dtype in (HALF, SINGLE))


def _probes(op: Op, case: Any, gpu: bool) -> Iterator[Case]:
    """The cases that check something other than values."""
    signature = op.signature
    half, single = HALF, SINGLE
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
        drawn = read(scaled(signature, _settled(signature, dict(dims)), len(seen)), ways)
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
    """Adjust drawn dims that depend on others; otherwise hardly any draw would be valid."""
    if "heads" in dims and "kv_heads" in dims and dims["heads"] % max(1, dims["kv_heads"]):
        dims["kv_heads"] = 1
    if "half" in dims and 2 * dims["half"] > dims.get("head_dim", 0):
        dims["half"] = max(1, dims["head_dim"] // 2)
    if "max_positions" in dims and "seq" in dims:
        dims["seq"] = min(dims["seq"], dims["max_positions"])
    return dims


def _causal(signature: Signature) -> dict[str, Any]:
    """Options that turn on the mask of an op that is not masked by default."""
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
