"""The choices that a signature leaves open (dtypes, optional tensors, options), and which of them the cases try."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch

from opmux.signatures.signature import Option, Signature
from opmux.testing.case import usual_dtype, without_idle_scales

QUANTISED = ("float8_e4m3fn", "float8_e5m2", "int8", "float8_e4m3fnuz", "float8_e5m2fnuz")

ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "eps": (1e-5, 0.1),
    "weight_offset": (1.0,),
    "scale": (0.25,),
    "softcap": (2.0,),
    "window": ((7, 0), (3, 2), (-1, 4), (0, 0)),
    "label_smoothing": (0.1, 1.0),
    "z_loss": (0.01,),
    "ignore_index": (0,),
    "block": ((1, 128), (1, -1), (-1, -1), (128, 128), (1, 32)),
    "dtype": tuple(getattr(torch, name) for name in QUANTISED),
    "out_dtype": (torch.bfloat16, torch.float16, torch.float32),
}
"""Values of options that are tried besides the default, by name."""

TOGETHER: tuple[Mapping[str, Any], ...] = (
    {"causal": True, "window": (7, 0)},
    {"causal": True, "window": (4, 3), "softcap": 2.0},
    {"causal": True, "softcap": 2.0, "scale": 0.25},
    {"causal": False, "window": (5, 0), "scale": 0.4},
    {"softcap": 2.0, "label_smoothing": 0.1, "z_loss": 0.01, "reduction": "sum"},
    {"label_smoothing": 0.1, "z_loss": 0.01, "ignore_index": 0},
    {"reduction": "none", "output_mask": (True, True, False)},
    {"block": (128, 128), "scale_major": "m"},
    {"block": (1, 32), "scale_major": "m"},
)
"""Options that are tried together."""


def quantised() -> tuple[torch.dtype, ...]:
    """The dtypes of 8-bit codes that this torch has."""
    return tuple(getattr(torch, name) for name in QUANTISED if hasattr(torch, name))


def lead_dtypes(signature: Signature) -> list[torch.dtype]:
    """The dtypes of the first tensor, 16-bit ones first."""
    order = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    first = signature.tensors[0].dtypes
    return [*(d for d in order if d in first), *sorted(first - set(order), key=str)]


def dtypes(signature: Signature, lead: torch.dtype, given: set[str]) -> dict[str, torch.dtype]:
    """The usual dtypes of the given tensors, for this dtype of the first tensor; only codes have a scale."""
    return without_idle_scales(signature, {t.name: usual_dtype(t, lead) for t in signature.tensors if t.name in given})


def dtype_combinations(signature: Signature) -> Iterator[dict[str, torch.dtype]]:
    """Every dtype of the first tensor; with 16-bit ones, the other groups in float32 too, one by one and together.

    Models combine narrow operands with wider ones (float32 weights, residual streams, sinks). Index tensors come in
    each width.
    """
    leads = lead_dtypes(signature)
    followers = _groups(signature)
    everything = {t.name for t in signature.tensors}
    for lead in leads:
        base = dtypes(signature, lead, everything)
        yield base
        wider = [g for g in followers if torch.float32 in signature.tensor(g[0]).dtypes and base[g[0]].itemsize < 4]
        for some in (*([g] for g in wider), wider if len(wider) > 1 else []):
            if some:
                yield base | {name: torch.float32 for group in some for name in group}
    for tensor in signature.tensors:
        for dtype in sorted(tensor.dtypes, key=str) if tensor.name not in signature.scales else ():
            if not dtype.is_floating_point and len(tensor.dtypes) > 1:
                alike = next((group for group in signature.same_dtype if tensor.name in group), (tensor.name,))
                yield dtypes(signature, leads[0], everything) | dict.fromkeys(alike, dtype)


def _groups(signature: Signature) -> list[tuple[str, ...]]:
    """Groups of tensors that agree in dtype, without the group of the first tensor."""
    found: list[tuple[str, ...]] = []
    first = signature.tensors[0].name
    grouped = {name for group in signature.same_dtype for name in group}
    for group in [*signature.same_dtype, *((t.name,) for t in signature.tensors if t.name not in grouped)]:
        floating = all(any(d.is_floating_point for d in signature.tensor(n).dtypes) for n in group)
        if first not in group and floating and len(signature.tensor(group[0]).dtypes) > 1:
            found.append(tuple(group))
    return found


def presences(signature: Signature) -> Iterator[set[str]]:
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


def required_options(signature: Signature) -> dict[str, Any]:
    """Options without a default that do not follow from index data: the first of their alternatives."""
    return {o.name: values[0] for o, values in alternatives(signature) if o.required}


def alternatives(signature: Signature) -> list[tuple[Option, tuple[Any, ...]]]:
    """The values to try for each option besides its default."""
    found = []
    for option in signature.options:
        values: tuple[Any, ...] = ()
        if option.name in ALTERNATIVES:
            values = ALTERNATIVES[option.name]
            if option.dtypes:
                values = tuple(v for v in values if v in option.dtypes) or tuple(sorted(option.dtypes, key=str))
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
    for option, values in alternatives(signature):
        for value in values:
            yield {option.name: value}
    names = {o.name for o in signature.options}
    for together in TOGETHER:
        if set(together) <= names:
            yield {n: v for n, v in together.items() if v != next(o for o in signature.options if o.name == n).default}
