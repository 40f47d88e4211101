"""Launches of the kernels through opmux-jit: compiled when first needed, on torch's current stream.

What a launch is given besides addresses follows from the config and the tensors' shapes, strides and dtypes. It is
prepared once and kept: a call like one before is a look-up, a native check that the tensors match, and a native launch.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opmux.plugin import make_guard
from opmux_deepgemm.allocation import maker
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Layout, Product, name, text
from opmux_deepgemm.grids import grid_of
from opmux_deepgemm.implementations import BACKEND
from opmux_deepgemm.operand_maps import (
    across_map,
    lies_across,
    map_of,
    matrix,
    row_scales_map,
    scales_map,
    with_scales,
)
from opmux_jit import Kernel, Source, load
from opmux_jit.launching import Address, MapOf
from opmux_jit.launching.devices import current_stream

ARCH = "sm_90a"
"""What is compiled for: the matrix unit's own instructions need the suffix."""
ARGUMENTS = "pppqqqqi"
"""The kernels' arguments after the maps: scales, bias, strides of scales, rows."""
OF_GROUPS = "pppqqi"
"""Those of groups of rows, after the others: result, offsets, sizes, strides of scales, number of groups."""
OF_GRADIENTS = "mmmpppii"
"""All arguments of gradients of weights: maps; result, offsets, sizes; rows, number of groups."""
OF_SCALED_GRADIENTS = "mmmpppppqqqqii"
"""Those from codes: maps; result, scales, offsets, sizes; strides of scales; rows, number of groups."""
Arguments = list[Address | MapOf | int | None]
"""A kernel's arguments; what depends on a tensor by the tensor's place."""
MOST_KEPT = 2048
"""Bounds the table of kept launches, however many shapes a process sees."""
MOST_ALIKE = 4
"""Launches that are kept for one key, of calls that differ in strides."""


class Operands(NamedTuple):
    """The tensors of a product.

    Attributes:
        x: ``(*batch, m, k)``, or ``(groups, max_m, k)`` where groups are masked.
        w: ``(n, k)``, or ``(groups, n, k)`` where there are groups, in x's dtype.
        bias: ``(n,)`` bfloat16, or None.
        x_scale: where the operands are codes, the scales of 1x128 blocks of x, in x's rank and any strides.
        w_scale: those of 128x128 blocks of w.
        offsets: where each group of ragged rows begins and the last one ends, int32 on the device.
        sizes: how many rows a group has, int32 on the device; None where ragged rows have no padding.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None = None
    x_scale: Tensor | None = None
    w_scale: Tensor | None = None
    offsets: Tensor | None = None
    sizes: Tensor | None = None

    @property
    def layout(self) -> Layout:
        """Of groups of rows: ``ragged``, ``masked``, or none."""
        return "ragged" if self.offsets is not None else "masked" if self.sizes is not None else ""


class Repeat(NamedTuple):
    """A kept launch.

    Attributes:
        same: whether tensors have the shapes, strides and dtypes that it was made for.
        same_into: the same of the tensors and the result.
        launch: called with the tensors and the result; launches nothing and returns False where one is not aligned.
        make: makes a result.
        config: kept alive, because the key holds its identity.
    """

    same: Callable[..., bool]
    same_into: Callable[..., bool]
    launch: Callable[..., bool]
    make: Callable[[], Tensor]
    config: Config


_kept: dict[Hashable, tuple[Repeat, ...]] = {}
_last: dict[tuple[int, int], tuple[Callable[..., bool], Callable[..., bool], Callable[[], Tensor], torch.dtype]] = {}
"""By config and number of tensors the last launch, as ``(same, launch, make a result, its dtype)``: most calls are like
it."""
_last_into: dict[tuple[int, int], tuple[Callable[..., bool], Callable[..., bool]]] = {}
"""Likewise ``(same_into, launch)``; the number is negative for products that are added."""


def entry(product: Product) -> str:
    """The kernel's name, as profilers show it and DeepGEMM's own benchmarks look for it."""
    return f"{'fp8' if product.scaled else 'bf16'}_gemm_product"


def source(product: Product, config: Config) -> Source:
    """The source of a kernel."""
    op = {"": "linear", "ragged": "grouped_linear", "masked": "masked_grouped_linear"}[product.groups]
    whole = "scaled_" * product.scaled + op + "_accumulate" * product.accumulate
    if product.gradient:
        whole = "scaled_" * product.scaled + "grouped_weight_grad"
    written = f"#define product {entry(product)}\n{text(product, config)}"
    return Source(name(product, config), written, ARCH, backend=BACKEND, op=whole)


@functools.lru_cache(maxsize=1024)
def kernel_of(product: Product, config: Config) -> Kernel:
    """The kernel of a product, which is compiled and loaded when it is first launched."""
    if product.gradient:
        return load(
            source(product, config), entry(product), OF_SCALED_GRADIENTS if product.scaled else OF_GRADIENTS,
            block=config.threads, cluster=config.cluster, dependent=True,
            shared=config.shared_bytes(product.out_bytes, product.scaled),
        )  # fmt: skip
    maps = "mmp" if config.kernel == "small" else "mmm" + "m" * bool(product.x_scales)
    signature = "mmmmmi" if product.w_scales else maps + ARGUMENTS + OF_GROUPS * bool(product.groups)
    return load(
        source(product, config), entry(product), signature, block=config.threads, cluster=config.cluster,
        dependent=True, shared=config.shared_bytes(product.out_bytes, product.accumulate),
    )  # fmt: skip


@functools.cache
def units_of(index: int) -> int:
    """Multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def limit_units(most: int | None) -> None:
    """Let the persistent kernel use so many multiprocessors at most; None takes all of them."""
    global _most_units
    _most_units = most
    forget()


_most_units: int | None = None


def most_units(index: int) -> int:
    """Multiprocessors of a GPU that kernels use."""
    return units_of(index) if _most_units is None else min(units_of(index), _most_units)


def repeated(config: Config, tensors: tuple[Tensor, ...], dtype: torch.dtype, out: Tensor | None) -> Tensor | None:
    """The product, where the last one of this config had tensors like these; else None, and nothing was launched.

    Args:
        config: of the kernel.
        tensors: those of `Operands` that are given, in order.
        dtype: of the result.
        out: where the result is to be written; None makes a tensor for it.
    """
    if out is not None:
        return out if repeated_into(config, tensors, out) else None
    found = _last.get((id(config), len(tensors)))
    if found is None:
        return None
    same, launch, make, made = found
    if made is not dtype or not same(*tensors):
        return None
    y = make()
    return y if launch(*tensors, y) else None


def repeated_into(config: Config, tensors: tuple[Tensor, ...], out: Tensor, accumulate: bool = False) -> bool:
    """Whether the product was computed into ``out``: it is where the last one of this config had tensors like these."""
    count = len(tensors)
    found = _last_into.get((id(config), -count if accumulate else count))
    return found is not None and found[0](*tensors, out) and found[1](*tensors, out)


def multiply(config: Config, given: Operands, y: Tensor, accumulate: bool = False) -> None:
    """Compute ``y = x w^T + bias``, for each group of rows if there are any, or add to y.

    Args:
        config: of the kernel.
        given: at least one row, and columns of unit stride.
        y: the result, contiguous, bfloat16 or float32; what is added to may have gaps between its rows.
        accumulate: whether the product is added to y, which is float32; the scales of w are then those of 1x128 blocks.

    Raises:
        BuildFailed: where the kernel does not compile or load.
        LaunchFailed: where the driver refuses the launch.
    """
    tensors = tuple(tensor for tensor in given if tensor is not None)
    if launch_again(config, tensors, y, accumulate, (given.bias is None, given.offsets is None)):
        return
    ready = _ready(given)
    product, grid, arguments = _prepared(config, ready, y, accumulate)
    now = tuple(tensor for tensor in ready if tensor is not None)
    launch_first(config, product, grid, arguments, tensors, now, y, (given.bias is None, given.offsets is None))


def launch_again(
    config: Config, tensors: tuple[Tensor, ...], y: Tensor, accumulate: bool = True, form: tuple[bool, ...] = ()
) -> bool:
    """Launch as before, where a launch is kept for tensors like these; returns whether one was.

    Args:
        config: of the kernel.
        tensors: all that the launch depends on.
        y: the result.
        accumulate: whether the product is added to it.
        form: what else tells products of as many tensors apart.
    """
    for one in _kept.get(_key(config, tensors, y, accumulate, form), ()):
        if one.same_into(*tensors, y):
            if not one.launch(*tensors, y):
                return False
            count = len(tensors)
            _last_into[id(config), -count if accumulate else count] = one.same_into, one.launch
            if not accumulate and y.is_contiguous():
                _last[id(config), count] = one.same, one.launch, one.make, y.dtype
            return True
    return False


def launch_first(
    config: Config, product: Product, grid: tuple[int, int, int], arguments: Arguments, tensors: tuple[Tensor, ...],
    ready: tuple[Tensor, ...], y: Tensor, form: tuple[bool, ...] = (),
) -> None:  # fmt: skip
    """Launch, and keep the launch if the kernel reads the tensors where they are.

    Args:
        config: of the kernel.
        product: what it computes.
        grid: blocks.
        arguments: the kernel's, of the tensors and the result behind them.
        tensors: all that the launch depends on.
        ready: the same, copied where the kernel cannot read them.
        y: the result.
        form: what else tells products of as many tensors apart.
    """
    kernel, index = kernel_of(product, config), tensors[0].get_device()
    key = _key(config, tensors, y, product.accumulate, form)
    alike = _kept.get(key, ())
    as_given = all(a.data_ptr() == b.data_ptr() for a, b in zip(tensors, ready, strict=True))
    known = any(one.same_into(*tensors, y) for one in alike)
    if as_given and not known and len(alike) < MOST_ALIKE:
        if len(_kept) >= MOST_KEPT:
            forget()
        launch = kernel.repeating(index, grid, arguments, len(tensors) + 1)
        same, same_into = make_guard(tensors, exact=True), make_guard([*tensors, y], exact=True)
        _kept[key] = (*_kept.get(key, ()), Repeat(same, same_into, launch, maker(y), config))
    now = (*ready, y)
    kernel.on(index)(*grid, current_stream(index), *(_value(argument, now) for argument in arguments))


def _key(config: Config, tensors: tuple[Tensor, ...], y: Tensor, accumulate: bool, form: tuple[bool, ...]) -> Hashable:
    (first, second), of_y = tensors[:2], (y.dtype, y.stride(), accumulate)
    return id(config), first.get_device(), first.shape, second.shape, len(tensors), *of_y, *form


def forget() -> None:
    """Keep no launches any more."""
    _kept.clear()
    _last.clear()
    _last_into.clear()


def _ready(given: Operands) -> Operands:
    """The operands as the kernels read them; what they cannot read where it lies is copied."""
    k = given.x.shape[-1]
    x_scale = given.x_scale
    if x_scale is not None and x_scale.dim() != 2 and not given.layout:
        x_scale = x_scale.reshape(-1, x_scale.shape[-1])
    offsets, sizes = (None if tensor is None else tensor.contiguous() for tensor in (given.offsets, given.sizes))
    return given._replace(
        x=given.x if lies_across(given.x) else matrix(given.x, k),
        w=given.w if lies_across(given.w) else matrix(given.w, k),
        x_scale=x_scale, offsets=offsets, sizes=sizes,
    )  # fmt: skip


def _prepared(
    config: Config, given: Operands, y: Tensor, accumulate: bool = False
) -> tuple[Product, tuple[int, int, int], Arguments]:
    """What a kernel computes, its grid and its arguments, of operands that are ready."""
    *room, k = given.x.shape
    rows = math.prod(room)  # of all groups where masked x lies across k
    n, out_bytes = y.shape[-1], y.element_size()
    layout, groups = given.layout, len(given.w) if given.w.dim() == 3 else len(given.w) // n
    dtype, out = (str(tensor.dtype).removeprefix("torch.") for tensor in (given.x, y))
    across = lies_across(given.x), lies_across(given.w)
    product = Product(dtype, out, n, k, given.bias is not None, layout, accumulate, *across)
    product = with_scales(product, config, given.x_scale, given.w_scale)
    m = rows // groups if layout == "masked" else rows
    places = itertools.count()
    place = {field: next(places) for field, tensor in given._asdict().items() if tensor is not None}
    result = next(places)

    def address(field: str) -> Address | None:
        return Address(place[field]) if field in place else None

    def strides(scale: Tensor | None) -> tuple[int, ...]:
        return (0, 0, 0) if scale is None else (0,) * (3 - scale.dim()) + scale.stride()

    box = 128 // given.x.element_size()
    x_box = config.block_m // config.x_share
    if config.kernel == "large" and product.moves and config.x_share == 1:
        x_box = min(x_box, rows)
    arguments: Arguments = [
        MapOf(0, functools.partial(map_of, columns=k, box_rows=x_box, box_columns=box)),
        MapOf(1, functools.partial(map_of, columns=k, box_rows=config.block_n // config.w_share, box_columns=box)),
        Address(result),
    ]
    for place_of, lies in enumerate(across):
        if lies:
            arguments[place_of] = MapOf(place_of, across_map)
    if config.kernel == "large":
        width = config.slice_width(out_bytes)
        in_slices = functools.partial(map_of, columns=n, box_rows=64, box_columns=width // out_bytes, width=width)
        arguments[2] = MapOf(result, in_slices)
    units = most_units(given.x.get_device())
    grid = grid_of(config, m, n, units, layout, groups)
    if product.w_scales:
        of_rows = ("x_scale", product.x_scales, config.block_m), ("w_scale", product.w_scales, config.block_n)
        for field, lie, block in of_rows:
            arguments.append(MapOf(place[field], functools.partial(row_scales_map, lie=lie, block=block)))
        return product, grid, [*arguments, m]
    if product.x_scales:
        arguments.append(MapOf(place["x_scale"], functools.partial(scales_map, product=product, config=config)))
    (x_group, *of_x), (w_group, *of_w) = strides(given.x_scale), strides(given.w_scale)
    arguments += [address("x_scale"), address("w_scale"), address("bias"), *of_x, *of_w, m]
    if layout:
        arguments += [Address(result), address("offsets"), address("sizes"), x_group, w_group, groups]
    return product, grid, arguments


def _value(argument: Address | MapOf | int | None, tensors: Sequence[Tensor]) -> Any:
    if isinstance(argument, MapOf):
        return argument.make(tensors[argument.tensor])
    return tensors[argument.tensor] if isinstance(argument, Address) else argument
