"""What the tensors of a case hold: made by the role of an argument, which its name tells, from a seed.

Index data is valid, as the ops require; what lies in unused places is poison. Float data is such that mistakes show:
rows of norms differ in scale (a quiet row shows a wrong eps), means are not zero, sinks matter.

A plugin that defines an op with an argument whose contents must obey a rule of its own registers a maker for it
with `makes`.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opmux.op import OPS, Op
from opmux.testing.case import Case, all_options
from opmux.testing.memory import POISON_INDEX, poison_
from opmux.testing.sequences import draw_lengths, draw_paged

QUIET_ROWS = (1.0, 2.0**-9, 16.0)
"""Scales of successive rows of what is normed: the mean square of a quiet row is about eps."""

MEAN = 0.25
"""The mean of what is normed, in units of its standard deviation."""


@dataclass
class Arguments:
    """The arguments of one call, by name; the tensors are contiguous."""

    tensors: dict[str, Tensor | None]
    options: dict[str, Any]


@dataclass
class Making:
    """What a maker of one argument is given.

    Attributes:
        name: the argument that is being made.
        shape: its shape.
        made: the arguments made so far, in order of the signature.
        shared: what makers of one call agree on (the lengths of the sequences, say).
    """

    case: Case
    op: Op
    device: torch.device
    generator: torch.Generator
    options: dict[str, Any]
    made: dict[str, Tensor | None] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    def normal(self, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Normally distributed numbers in the argument's shape and dtype."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        drawn = torch.randn(self.shape, generator=self.generator, device=self.device, dtype=wide)
        return drawn.mul_(scale).add_(mean).to(self.dtype)

    def integers(self, low: int, high: int, shape: tuple[int, ...] | None = None) -> Tensor:
        """Integers from low to below high; low where there are none."""
        size = self.shape if shape is None else shape
        return torch.randint(
            low, max(high, low + 1), size, generator=self.generator, device=self.device, dtype=torch.int64
        )

    def permutation(self, count: int) -> Tensor:
        """A random order of the numbers below count."""
        return torch.randperm(count, generator=self.generator, device=self.device)

    def as_index(self, values: list[int] | Tensor) -> Tensor:
        """Index data in the argument's dtype, on its device."""
        return torch.as_tensor(values, device=self.device).to(self.dtype).reshape(self.shape)

    def dim(self, name: str) -> int:
        """A dim's size; a star dim's product."""
        size = self.case.dims[name]
        return math.prod(size) if isinstance(size, tuple) else int(size)


Maker = Callable[[Making], Tensor]

MAKERS: dict[tuple[str, str], Maker] = {}
"""(op or "*", argument) -> its maker."""


def makes(argument: str, *, op: str = "*") -> Callable[[Maker], Maker]:
    """Register a maker for the argument of that name, of every op or of one.

    Args:
        argument: the tensor argument's name.
        op: the op's name, or ``"*"`` for every op that has such an argument and no maker of its own.
    """

    def register(maker: Maker) -> Maker:
        MAKERS[op, argument] = maker
        return maker

    return register


def make_arguments(case: Case, device: torch.device, round_: int = 0) -> Arguments:
    """Make the arguments of a case.

    Args:
        case: the case.
        device: where the tensors shall be.
        round_: another number gives other contents of the same shapes.
    """
    op = case.definition
    seed = zlib.crc32(f"{case.op},{case.id},{round_}".encode())
    generator = torch.Generator(device).manual_seed(seed)
    making = Making(case, op, device, generator, all_options(op.signature, case))
    shapes = case.shapes
    derived = _derived(op)
    for argument in op.signature.tensors:
        making.name = argument.name
        if argument.name not in case.dtypes:
            making.made[argument.name] = None
        elif argument.name not in derived:
            making.shape, making.dtype = shapes[argument.name], case.dtypes[argument.name]
            making.made[argument.name] = _maker(op, argument.name)(making).contiguous()
    for option in op.signature.options:
        if option.name not in making.options and option.name in making.shared:
            making.options[option.name] = making.shared[option.name]
    if derived:
        _derive(op, making, derived)
    made = Arguments(
        {t.name: making.made[t.name] for t in op.signature.tensors},
        {o.name: making.options[o.name] for o in op.signature.options},
    )
    fill_unused(made)
    return made


def _maker(op: Op, name: str) -> Maker:
    for key in ((op.name, name), ("*", name)):
        if key in MAKERS:
            return MAKERS[key]
    argument = op.signature.tensor(name)
    if not any(d.is_floating_point for d in argument.dtypes):
        return _some_integers
    return _some_numbers


def _some_numbers(making: Making) -> Tensor:
    """What nobody has a rule for: normal numbers, in 8-bit formats spread over their range."""
    if making.dtype.is_floating_point and making.dtype.itemsize == 1:
        making.dtype, stored = torch.float32, making.dtype
        return making.normal(4.0).to(stored)
    return making.normal()


def _some_integers(making: Making) -> Tensor:
    """Index data that nobody has a rule for: offsets where the shape ends in ``name+1``, zeros elsewhere."""
    shape = making.op.signature.tensor(making.name).shape
    last = shape.dims[-1] if shape.dims else None
    if making.dtype == torch.int8:
        return making.integers(-127, 128).to(torch.int8)
    if len(making.shape) == 1 and getattr(last, "offset", 0) == 1:
        first = next(t for t in making.made.values() if t is not None)
        lengths = draw_lengths(making.generator, making.shape[0] - 1, first.shape[0])
        return making.as_index(_running(lengths))
    return making.as_index(torch.zeros(making.shape, dtype=torch.int64))


def _running(lengths: list[int]) -> list[int]:
    total = [0]
    for length in lengths:
        total.append(total[-1] + length)
    return total


def _derived(op: Op) -> dict[str, Op]:
    """Arguments of a backward op that are results of its forward (out, lse), and the op that gives them."""
    if not op.is_backward:
        return {}
    names = [t.name for t in op.signature.tensors]
    for forward in OPS.values():
        if forward.gradient != op.name or forward.gradient_through is not None:
            continue
        if all(t.name in names for t in forward.signature.required):
            return {o.name: forward for o in forward.signature.outputs if o.name in names}
    return {}


def _derive(op: Op, making: Making, derived: Mapping[str, Op]) -> None:
    """Run the forward's reference for what the backward takes of its results."""
    forward = next(iter(derived.values()))
    tensors = [making.made.get(t.name) for t in forward.signature.tensors]
    results = forward.reference(*tensors, **{o.name: making.options[o.name] for o in forward.signature.options})
    several = results if isinstance(results, tuple) else (results,)
    for output, result in zip(forward.signature.outputs, several, strict=True):
        if output.name in derived:
            making.made[output.name] = result.to(making.case.dtypes[output.name]).contiguous()


# Floating-point roles


def _rows_of_all_scales(making: Making) -> Tensor:
    drawn = making.normal(mean=MEAN)
    if not drawn.numel() or drawn.dim() < 2:
        return drawn
    rows = drawn.numel() // drawn.shape[-1]
    scales = torch.tensor(QUIET_ROWS, dtype=drawn.dtype, device=drawn.device)
    of_row = scales[torch.arange(rows, device=drawn.device) % len(QUIET_ROWS)]
    return drawn * of_row.reshape(*drawn.shape[:-1], 1)


@makes("x")
@makes("residual")
@makes("residual_out")
def _streams(making: Making) -> Tensor:
    """What is normed or quantised: rows of all scales; elsewhere rows of one."""
    return _rows_of_all_scales(making) if {"hidden", "m"} & set(making.op.signature.binders) else making.normal()


@makes("weight")
def _gain(making: Making) -> Tensor:
    return making.normal(0.25, 0.0 if making.options.get("weight_offset") else 1.0)


@makes("w")
def _weight(making: Making) -> Tensor:
    return making.normal(1 / math.sqrt(max(1, making.shape[-1])))


@makes("gate")
def _gate(making: Making) -> Tensor:
    return making.normal(2.0)


@makes("cos")
def _cos(making: Making) -> Tensor:
    return torch.cos(_angles(making)).to(making.dtype)


@makes("sin")
def _sin(making: Making) -> Tensor:
    return torch.sin(_angles(making)).to(making.dtype)


def _angles(making: Making) -> Tensor:
    positions, half = making.shape
    step = 10000.0 ** (-torch.arange(half, device=making.device, dtype=torch.float64) / max(1, half))
    return torch.arange(positions, device=making.device, dtype=torch.float64).unsqueeze(1) * step


@makes("lse_a")
@makes("lse_b")
def _partial_lse(making: Making) -> Tensor:
    """Log-sum-exps, some -inf: a side that attended to nothing. Now and then both sides have."""
    drawn = making.normal(1.5)
    return drawn.masked_fill(making.integers(0, 5) == 0, -math.inf)


# Index roles


@makes("positions")
def _positions(making: Making) -> Tensor:
    return making.as_index(making.integers(0, making.dim("max_positions")))


@makes("slot_mapping")
def _slots(making: Making) -> Tensor:
    """Slots all over the cache, each once; some tokens are skipped."""
    slots, tokens = making.dim("pages") * making.dim("page_size"), making.shape[0]
    drawn = torch.full((tokens,), -1, device=making.device)
    given = min(slots, tokens)
    drawn[:given] = making.permutation(slots)[:given]
    drawn[making.integers(0, 6) == 0] = -1
    return making.as_index(drawn)


@makes("cu_seqlens_q")
@makes("cu_seqlens_k")
def _offsets(making: Making) -> Tensor:
    if "block_table" in making.case.dtypes:
        return making.as_index(_running(_paged(making)["new"]))
    side = making.name[-1]
    # An empty sequence and tokens past the last one are within the contract, and easily forgotten.
    lengths = draw_lengths(making.generator, making.dim("batch"), making.dim(f"tokens_{side}"))
    making.shared[f"max_seqlen_{side}"] = max(lengths, default=0)
    if making.case.data == "loose":
        making.shared[f"max_seqlen_{side}"] += 37
    return making.as_index(_running(lengths))


@makes("seq_lens")
def _lengths(making: Making) -> Tensor:
    return making.as_index(_paged(making)["lengths"])


@makes("block_table")
def _block_table(making: Making) -> Tensor:
    """Distinct pages for what each sequence needs, and rubbish in the entries past it."""
    table = poison_(torch.empty(making.shape, dtype=torch.int64, device=making.device))
    table[:, 1::2] = 2**31 - 1
    order = making.permutation(making.dim("pages")).tolist()
    for row, pages in enumerate(_paged(making)["pages"]):
        table[row, :pages] = torch.tensor([order.pop() for _ in range(pages)], dtype=torch.int64)
    return making.as_index(table)


@makes("k_cache")
@makes("v_cache")
def _cache(making: Making) -> Tensor:
    """Cached keys or values; what belongs to no sequence is NaN, in `fill_unused`."""
    return making.normal()


def _paged(making: Making) -> dict[str, list[int]]:
    """How many new tokens, tokens and pages each sequence has; one draw for all arguments of a call."""
    if "paged" not in making.shared:
        found = draw_paged(
            making.generator,
            batch=making.dim("batch"),
            tokens=making.dim("tokens"),
            pages=making.dim("pages"),
            page_size=making.dim("page_size"),
            max_pages=making.dim("max_pages"),
            kind=making.case.data,
        )
        making.shared["paged"] = found
        loose = 37 if making.case.data == "loose" else 0
        making.shared["max_seqlen_q"] = max(found["new"], default=0) + loose
        making.shared["max_seqlen_k"] = max(found["lengths"], default=0) + loose
    paged: dict[str, list[int]] = making.shared["paged"]
    return paged


def fill_unused(arguments: Arguments) -> None:
    """Put NaN wherever a paged cache holds no token of a sequence: it must never reach a result."""
    tensors = arguments.tensors
    table, lengths = tensors.get("block_table"), tensors.get("seq_lens")
    if table is None or lengths is None:
        return
    for name in ("k_cache", "v_cache"):
        cache = tensors.get(name)
        if cache is None or not cache.numel():
            continue
        page_size = cache.shape[1]
        used = torch.zeros(cache.shape[:2], dtype=torch.bool, device=cache.device)
        for row, length in zip(table.tolist(), lengths.tolist(), strict=True):
            for place in range(-(-length // page_size)):
                used[row[place], : length - place * page_size] = True
        poison_in = ~used
        cache[poison_in] = float("nan") if cache.dtype.is_floating_point else POISON_INDEX
