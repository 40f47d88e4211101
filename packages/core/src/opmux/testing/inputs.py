"""The arguments of a case: made by name (`opmux.testing.contents`), from a seed derived from its id."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from opmux.callpath.op import OPS, Op
from opmux.signatures.signature import AHEAD
from opmux.testing import contents
from opmux.testing.case import Case, all_options
from opmux.testing.making import MAKERS, Arguments, Maker, Making
from opmux.testing.memory import bits, poison_
from opmux.testing.unwritten import unused_rows

Forward = Callable[..., Any]
"""What computes the results of a forward op that its backward takes: it gets the op's tensors and options."""


def make_arguments(
    case: Case,
    device: torch.device,
    round_: int = 0,
    doublings: int = 0,
    forward: Callable[[Op], Forward] = lambda op: op.reference,
) -> Arguments:
    """Make the arguments of a case.

    Args:
        case: the case.
        device: the device of the tensors.
        round_: a different number gives different contents of the same shapes.
        doublings: elements of the argument that ``case.data`` names are doubled up to this many times.
        forward: for the arguments of a backward op that its forward returns, what computes that forward.
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
            if doublings and argument.name == case.data:
                making.made[argument.name] = _doubled(making, doublings, seed + 1)
    for option in op.signature.options:
        if option.name not in making.options and option.name in making.shared:
            making.options[option.name] = making.shared[option.name]
    if derived:
        _derive(making, derived, forward)
    made = Arguments(
        {t.name: making.made[t.name] for t in op.signature.tensors},
        {o.name: making.options[o.name] for o in op.signature.options},
    )
    fill_unused(made)
    return made


def _doubled(making: Making, doublings: int, seed: int) -> Tensor:
    """Remake the argument that was made last, each element scaled by a power of two up to 2**doublings.

    Infinities stay what they are. It has its own random generator, so that the arguments that follow do not change.
    """
    made = making.made[making.name]
    assert made is not None
    largest = torch.finfo(made.dtype).max
    generator = torch.Generator(making.device).manual_seed(seed)
    drawn = torch.randint(0, doublings + 1, made.shape, generator=generator, device=making.device)
    factors = torch.exp2(drawn.to(torch.float64))
    larger = (made.to(torch.float64) * factors).clamp(-largest, largest).to(made.dtype)
    return torch.where(made.isfinite(), larger, made)


def _maker(op: Op, name: str) -> Maker:
    for key in ((op.name, name), ("*", name)):
        if key in MAKERS:
            return MAKERS[key]
    argument = op.signature.tensor(name)
    if not any(d.is_floating_point for d in argument.dtypes):
        return contents.some_integers
    return contents.some_numbers


def _derived(op: Op) -> dict[str, Op]:
    """Arguments of a backward op that are results of its forward (out, lse), and the op that returns them.

    Gradients that a forward has computed are multiplied and nothing else: any contents will do.
    """
    if not op.is_backward:
        return {}
    names = [t.name for t in op.signature.tensors]
    for forward in OPS.values():
        if forward.gradient != op.name or forward.gradient_through is not None:
            continue
        if all(t.name in names for t in forward.signature.required):
            outputs = [o.name for o in forward.signature.outputs if not o.name.endswith(AHEAD)]
            return {name: forward for name in outputs if name in names}
    return {}


def _derive(making: Making, derived: Mapping[str, Op], computed_by: Callable[[Op], Forward]) -> None:
    """Run the forward to get the results that the backward takes."""
    forward = next(iter(derived.values()))
    tensors = [making.made.get(t.name) for t in forward.signature.tensors]
    results = computed_by(forward)(*tensors, **{o.name: making.options[o.name] for o in forward.signature.options})
    several = results if isinstance(results, tuple) else (results,)
    for output, result in zip(forward.signature.outputs, several, strict=True):
        if output.name in derived:
            making.made[output.name] = result.to(making.case.dtypes[output.name]).contiguous()


def fill_unused(arguments: Arguments) -> None:
    """Put NaN where no sequence has a token in a paged cache, and no group a row: it must never reach a result."""
    tensors = arguments.tensors
    _fill_unused_rows(tensors)
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
        poison = poison_(torch.empty((), dtype=cache.dtype, device=cache.device))
        bits(cache)[~used] = bits(poison)  # torch selects no 8-bit floats


def _fill_unused_rows(tensors: Mapping[str, Tensor | None]) -> None:
    """Poison the rows of grouped operands, and their scales, that belong to no group."""
    unused = unused_rows(tensors)
    for name in ("x", "dy", "grad_out", "x_scale"):
        tensor = tensors.get(name)
        if unused is not None and tensor is not None and tensor.shape[: unused.dim()] == unused.shape:
            if name == "x_scale" and unused.shape[-1] == 1:
                continue  # one row, so its scale may be that of all
            bits(tensor)[unused] = bits(poison_(torch.empty_like(tensor)))[unused]
    if unused is None or "dy_scale" not in tensors:
        return
    idle = torch.nn.functional.pad(unused, (0, -len(unused) % 128), value=True).view(-1, 128).all(1)
    for name in ("dy_scale", "x_scale"):  # of blocks of rows, of which none is used
        scale = tensors[name]
        assert scale is not None
        bits(scale)[idle] = bits(poison_(torch.empty_like(scale)))[idle]
