"""Tensors past 2**31 elements, which break 32-bit index arithmetic in kernels.

The target runs once on the whole tensors. The oracle sees only some entries of the leading dim, which are independent
of each other: the first, the last, and those around the 2**31st element. Of a paged cache it sees the pages in use.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opmux.callpath.op import Op
from opmux.signatures.dims import CeilQuotient, Shape
from opmux.signatures.signature import AHEAD, Option, Signature
from opmux.testing.case import Case, usual_dtype, without_idle_scales
from opmux.testing.making import Arguments
from opmux.testing.profiles import Profile
from opmux.testing.sizes import base_dims, scaled

if TYPE_CHECKING:
    from opmux.testing.subject import Subject

ELEMENTS = 2**31
"""The number of elements that the tensors exceed."""

_WIDE: Mapping[str, int] = {
    "hidden": 8192,
    "n": 4096,
    "k": 4096,
    "m": 16,
    "seq": 16,
    "seq_q": 64,
    "seq_k": 64,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 128,
    "value_dim": 128,
    "half": 64,
    "vocab": 32768,
}

_TOGETHER = 4096
"""Rows of a group at most, where groups are the entries that are checked."""


def leading_dim(op: Op) -> str | None:
    """The dim whose entries are independent: it leads the first tensor, and every output that has it."""
    shape = op.signature.tensors[0].shape
    if any(t.name in ("cu_seqlens_q", "slot_mapping", "group_offsets") for t in op.signature.tensors):
        return None
    name = shape.star or next(iter(shape.names()), None)
    return name if name in ("tokens", "batch", "m") else None


def cases(op: Op, profile: Profile, elements: int = ELEMENTS) -> Iterator[Case]:
    """The large cases of an op; none if its results cannot be split into independent entries."""
    signature = op.signature
    dims = base_dims(signature, profile)
    if elements == ELEMENTS:
        dims |= {name: size for name, size in _WIDE.items() if name in dims}
    lead = leading_dim(op)
    paged = any(t.name == "k_cache" for t in signature.tensors)
    ragged = "tokens_q" in dims and "tokens_k" in dims
    if lead is None and not paged and not ragged and "groups" not in dims:
        return
    required: dict[str, Any] = {o.name: _usual(o) for o in signature.options if o.kind == "dtype" and o.required}
    if any(o.name == "reduction" for o in signature.options):  # a mean over all entries is none over some of them
        required["reduction"] = "none" if any(o.reduction for o in signature.outputs) else "sum"
    ahead = [o.name.endswith(AHEAD) and lead not in tuple(o.shape.names()) for o in signature.outputs]
    if any(ahead):  # gradients of a sum over all entries, which is no use then
        required["output_mask"] = tuple(not summed for summed in ahead)
    if "groups" in dims:  # weights and rows are both that large
        n, k, rows = dims["n"], dims["k"], min(dims["n"], dims["k"], _TOGETHER)
        groups = 3 + elements // (rows * min(n, k))
        dims |= {"groups": groups} | ({"max_m": rows} if "max_m" in dims else {"m": groups * rows})
    elif paged:
        dims["pages"] = 1 + 2 * elements // (dims["page_size"] * dims["kv_heads"] * dims["head_dim"])
    elif ragged:
        tokens = 3 + elements // (dims["kv_heads"] * min(dims["head_dim"], dims["value_dim"]))
        dims |= {"tokens_q": tokens, "tokens_k": tokens, "batch": max(3, tokens // 64)}
    elif lead is not None:
        one: tuple[Any, ...] = (1,)
        dims[lead] = one if lead in signature.stars else 1
        width = max(math.prod(t.shape.value(dims, required)) for t in signature.tensors if lead in t.shape.names())
        count = elements // max(1, width) + 3
        dims[lead] = (count,) if lead in signature.stars else count
    dtypes = without_idle_scales(signature, {t.name: usual_dtype(t, torch.bfloat16) for t in signature.tensors})
    yield Case(op.name, dtypes, scaled(signature, dims, 0), required, probe="large")


def _usual(option: Option) -> torch.dtype:
    """The first of the usual dtypes that an option takes."""
    return next(d for d in (torch.float8_e4m3fn, torch.bfloat16, torch.float32) if d in option.dtypes)


def places(count: int, widths: Sequence[int]) -> list[int]:
    """Entries of a dim to check: both ends, the middle, and where tensors of these widths pass 2**31."""
    around = [0, count // 2, count - 1, *(ELEMENTS // max(1, w) for w in widths)]
    wanted = {a + step for a in around for step in (-1, 0, 1)}
    return sorted(p for p in wanted if 0 <= p < count)


def part(subject: "Subject", results: Sequence[Tensor]) -> tuple[Arguments, list[Tensor]]:
    """The arguments and results that are passed to the oracle."""
    if "cu_seqlens_k" in subject.arguments.tensors:
        return _some_sequences(subject, results)
    if "groups" in subject.op.signature.binders:
        return _some_groups(subject, results)
    if leading_dim(subject.op) is None:
        return _used_pages(subject.arguments), list(results)
    return _some_entries(subject, results)


def _some_sequences(subject: "Subject", results: Sequence[Tensor]) -> tuple[Arguments, list[Tensor]]:
    """The first, the middle and the last sequence, as a batch of three."""
    signature, tensors = subject.op.signature, subject.arguments.tensors
    kept: dict[str, Tensor] = {}
    offsets: dict[str, Tensor] = {}
    for side in ("q", "k"):
        given = tensors[f"cu_seqlens_{side}"]
        assert given is not None
        ends = given.tolist()
        last = len(ends) - 2
        spans = [range(ends[i], ends[i + 1]) for i in sorted({0, last // 2, last})]
        kept[f"tokens_{side}"] = torch.tensor([t for span in spans for t in span], device=given.device)
        sums = [0]
        for span in spans:
            sums.append(sums[-1] + len(span))
        offsets[f"cu_seqlens_{side}"] = torch.tensor(sums, dtype=given.dtype, device=given.device)

    def cut(tensor: Tensor | None, names: Sequence[str | None]) -> Tensor | None:
        for axis, name in enumerate(names):
            if tensor is not None and name in kept:
                tensor = tensor.index_select(axis, kept[name])
        return tensor

    arguments = {t.name: cut(tensors[t.name], list(t.shape.names())) for t in signature.tensors}
    some = [cut(r, list(o.shape.names())) for r, o in zip(results, signature.outputs, strict=True)]
    return Arguments({**arguments, **offsets}, subject.arguments.options), [r for r in some if r is not None]


def checked_groups(subject: "Subject") -> Tensor:
    """The groups that are passed to the oracle: the first, the middle and the last one."""
    last = int(subject.case.dims["groups"]) - 1
    return torch.tensor(sorted({0, last // 2, last}), device=subject.device)


def _some_groups(subject: "Subject", results: Sequence[Tensor]) -> tuple[Arguments, list[Tensor]]:
    """A few groups, as a call of so many; rows past the last offset are left out.

    Where a tensor has an entry for so many rows, counted from row 0, a group keeps all rows of the entries that it has
    a part of, and the group's size says which of them are its own.
    """
    signature, tensors = subject.op.signature, subject.arguments.tensors
    kept = {"groups": checked_groups(subject)}
    offsets = tensors.get("group_offsets")
    step = _rows_of_an_entry(signature)
    replaced: dict[str, Tensor] = {}
    if offsets is not None:
        ends, sizes = offsets.tolist(), tensors.get("group_sizes")
        spans = [range(ends[group], ends[group + 1]) for group in kept["groups"].tolist()]
        wide = [range(span.start // step * step, -(-span.stop // step) * step) for span in spans]
        rows = torch.tensor([row for span in wide for row in span], dtype=torch.int64, device=offsets.device)
        # Past the last row another one is repeated: it belongs to no group.
        kept["m"] = rows.clamp_max(int(subject.case.dims["m"]) - 1)
        kept["entries"] = rows[::step] // step
        places = torch.tensor([0, *map(len, wide)]).cumsum(0)
        places[:-1] += torch.tensor([span.start - around.start for span, around in zip(spans, wide, strict=True)])
        replaced["group_offsets"] = places.to(offsets)
        if step > 1 and sizes is None:
            replaced["group_sizes"] = torch.tensor([len(span) for span in spans]).to(offsets)
    whole = subject.case.dims.get("m")

    def cut(tensor: Tensor | None, shape: Shape) -> Tensor | None:
        names = list(shape.names())
        if tensor is None or not names:
            return tensor
        name = "m" if names[0] == "m_blocks" and tensor.shape[0] == whole else names[0]
        if name == "m" and isinstance(shape.dims[0], CeilQuotient):
            name = "entries"
        return tensor.index_select(0, kept[name]) if name in kept else tensor

    arguments = {t.name: cut(tensors[t.name], t.shape) for t in signature.tensors}
    shapes = [o.shape for o in signature.outputs] or [signature.tensor(name).shape for name in signature.mutates]
    some = [cut(r, shape) for r, shape in zip(results, shapes, strict=True)]
    return Arguments({**arguments, **replaced}, subject.arguments.options), [r for r in some if r is not None]


def _rows_of_an_entry(signature: Signature) -> int:
    """For how many rows of ``m`` a tensor has one entry, at most; 1 if each has one for each row."""
    leading = [t.shape.dims[0] for t in signature.tensors if t.shape.dims]
    quotients = [dim for dim in leading if isinstance(dim, CeilQuotient) and dim.numerator.name == "m"]
    return max((int(dim.denominator.value({}, {})) for dim in quotients), default=1)


def checked_entries(subject: "Subject") -> Tensor:
    """The entries of the leading dim that are passed to the oracle."""
    given = [subject.arguments.tensors[t.name] for t in subject.op.signature.tensors]
    first = given[0]
    assert first is not None
    widths = [t.numel() // max(1, t.shape[0]) for t in given if t is not None and t.dim()]
    return torch.tensor(places(first.shape[0], widths), device=first.device)


def _some_entries(subject: "Subject", results: Sequence[Tensor]) -> tuple[Arguments, list[Tensor]]:
    signature = subject.op.signature
    lead = str(leading_dim(subject.op))
    whole = {t.name: subject.arguments.tensors[t.name] for t in signature.tensors}
    rows = checked_entries(subject)

    def cut(tensor: Tensor | None, leads: bool) -> Tensor | None:
        return tensor.index_select(0, rows) if tensor is not None and leads else tensor

    arguments = Arguments(
        {t.name: cut(whole[t.name], lead in t.shape.names()) for t in signature.tensors},
        dict(subject.arguments.options),
    )
    leading = [lead in o.shape.names() for o in signature.outputs] or [True] * len(results)
    some = [r.index_select(0, rows) if leads else r for r, leads in zip(results, leading, strict=True)]
    return arguments, some


def sums_over_entries(op: Op) -> list[bool]:
    """Which outputs sum over the leading dim, so that they cannot be checked in parts."""
    lead = leading_dim(op)
    if lead is None:
        sums = [o.name == "grad_sinks" for o in op.signature.outputs]
        return sums or [False] * len(op.signature.mutates)
    return [lead not in o.shape.names() for o in op.signature.outputs] or [False] * len(op.signature.mutates)


def _used_pages(arguments: Arguments) -> Arguments:
    """The same call on a cache that holds only the pages in use."""
    tensors = dict(arguments.tensors)
    table, lengths, slots = (tensors.get(n) for n in ("block_table", "seq_lens", "slot_mapping"))
    k_cache = tensors["k_cache"]
    assert k_cache is not None
    size = k_cache.shape[1]
    if table is not None and lengths is not None:
        needed = torch.arange(table.shape[1], device=table.device) < (-(-lengths // size)).unsqueeze(1)
        used, place = torch.unique(table[needed], return_inverse=True)
        compact = table.clone()
        compact[needed] = place.to(table.dtype)
        tensors["block_table"] = compact
    elif slots is not None:
        used, place = torch.unique(slots.clamp_min(0) // size, return_inverse=True)
        tensors["slot_mapping"] = torch.where(slots < 0, slots, place * size + slots % size)
    for name in ("k_cache", "v_cache"):
        cache = tensors[name]
        assert cache is not None
        tensors[name] = cache.index_select(0, used.to(torch.int64))
    return Arguments(tensors, arguments.options)


def used_pages_of(subject: "Subject") -> Tensor | None:
    """The pages that a mutating op may write."""
    slots, k_cache = subject.arguments.tensors.get("slot_mapping"), subject.arguments.tensors.get("k_cache")
    if slots is None or k_cache is None:
        return None
    used: Tensor = torch.unique(slots.clamp_min(0) // k_cache.shape[1])
    return used
