"""Cases of tensors that may hold real numbers or 8-bit codes with a scale, such as KV caches: those with codes.

The other cases of such an op have real numbers, without scales. A backend that takes codes only gets all of those too,
fitted to what it takes (`opmux.testing.fitted`).
"""

from collections.abc import Callable, Iterator

import torch

from opmux.callpath.op import Op
from opmux.signatures.signature import Signature
from opmux.testing import choices
from opmux.testing.case import ONE_SCALE, Case, usual_dtype, without_idle_scales
from opmux.testing.contents import ALL_CODES
from opmux.testing.memory import VIEWS
from opmux.testing.profiles import Profile
from opmux.testing.sequences import LONG
from opmux.testing.sizes import Dims, base_dims, edge_dims, long_dims, model_dims, tile_dims

_CODES = torch.float8_e4m3fn
"""The codes of most cases."""


def cases(op: Op, profile: Profile, gpu: bool) -> Iterator[Case]:
    """Every dtype of codes, scales left out one by one, one scale for all heads, and cases of each other kind."""
    signature = op.signature
    if not signature.scales:
        return
    base, required = base_dims(signature, profile), choices.required_options(signature)
    leads = [d for d in choices.lead_dtypes(signature) if d.itemsize > 1]

    def case(dtypes: dict[str, torch.dtype], dims: Dims = base, **rest: object) -> Case:
        given = rest.pop("options", {})
        assert isinstance(given, dict)
        return Case(op.name, dtypes, dims, {**required, **given}, **rest)  # type: ignore[arg-type]

    for lead in leads:
        yield from (case(coded(signature, lead, codes)) for codes in choices.quantised())
    for codes in choices.quantised():
        yield case(_without(coded(signature, leads[0], codes), *signature.scales.values()))
        yield case(coded(signature, leads[0], codes), data=ONE_SCALE)
    usual = coded(signature, leads[0], _CODES)
    yield from (case(_without(usual, scale)) for scale in signature.scales.values() if scale in usual)
    for place, dims in enumerate(long_dims(signature, profile)):
        yield case(usual, dims, data=LONG)
        if not place:  # not converted in pairs; products in float32
            yield case(coded(signature, leads[0], torch.int8), dims, data=LONG)
            yield case(coded(signature, torch.float32, _CODES), dims, data=LONG)
    yield from _of_each_kind(signature, profile, usual, case, gpu)


def _of_each_kind(
    signature: Signature, profile: Profile, usual: dict[str, torch.dtype], case: Callable[..., Case], gpu: bool
) -> Iterator[Case]:
    for options in choices.option_choices(signature):
        yield case(usual, options=options)
    tile = tile_dims(signature, profile)
    if tile is not None:
        yield case(usual, tile)
    for _, dims in model_dims(signature, profile):
        yield case(usual, dims)
    for place, dims in enumerate(edge_dims(signature, profile)):
        if place % 2:
            yield case(usual, dims)
    for view in VIEWS[1:]:
        yield case(usual, view=view)
    for scale in signature.scales.values():
        if scale in usual:
            yield case(usual, data=scale, probe="nan")
    for probe in ("repeat", "stale", *(("capture",) if gpu else ())):
        yield case(usual, probe=probe)
    if profile.contains:
        return
    if signature.mutates:
        yield from _conversions_of_nonfinite(signature, usual, case)
    else:
        yield from _special_codes(signature, usual, case)


def _conversions_of_nonfinite(
    signature: Signature, usual: dict[str, torch.dtype], case: Callable[..., Case]
) -> Iterator[Case]:
    """NaN and infinities in what is written as codes, of every dtype."""
    names = [name for name in usual if _is_real(signature, name)]
    lead = usual[names[0]]
    for name in names:
        yield from (case(usual, data=name, probe=probe) for probe in ("nan", "inf", "-inf"))
    for codes in choices.quantised():
        yield case(coded(signature, lead, codes), data=names[0], probe="nan")
        yield case(coded(signature, lead, codes), data=names[-1], probe="-inf")


def _special_codes(signature: Signature, usual: dict[str, torch.dtype], case: Callable[..., Case]) -> Iterator[Case]:
    """NaN among the codes and in what is multiplied by them, infinities where codes have them, and all finite codes."""
    first = signature.tensors[0].name
    lead = usual[first]
    yield case(usual, data=first, probe="nan")
    for codes in choices.quantised():
        named = coded(signature, lead, codes)
        yield case(named, data=ALL_CODES)
        for name in (n for n in signature.scales if n != first and codes.is_floating_point):
            yield case(named, data=name, probe="nan")
            if codes == torch.float8_e5m2:
                yield case(named, data=name, probe="inf")


def _is_real(signature: Signature, name: str) -> bool:
    """Whether a tensor holds real numbers, which are neither codes nor scales."""
    scales = signature.scales
    return signature.tensor(name).dtypes >= {torch.float64} and name not in scales and name not in scales.values()


def coded(signature: Signature, lead: torch.dtype, codes: torch.dtype) -> dict[str, torch.dtype]:
    """The dtypes of all tensors where the first one has real numbers, and those that may have codes have them."""
    first = signature.tensors[0].name
    found = {t.name: usual_dtype(t, lead) for t in signature.tensors}
    found |= {name: codes for name in signature.scales if name != first}
    return without_idle_scales(signature, found)


def _without(dtypes: dict[str, torch.dtype], *scales: str) -> dict[str, torch.dtype]:
    return {name: dtype for name, dtype in dtypes.items() if name not in scales}
