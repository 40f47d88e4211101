"""What stands for ``cuda.tile`` while a kernel is played: the functions that this package's kernels use, in torch.

A tile is a tensor on the CPU; scalars are Python's. Where the language leaves something undefined, or leaves it to the
kernel's author, this raises `Misuse`: a tile whose dims are no powers of two, a load that lies outside its array, an
index out of bounds where the check is switched off, an element that two blocks write, or that one writes and another
reads. Padding that the language leaves open is NaN. Sums are torch's: right to a few roundings of float32.
"""

from collections.abc import Sequence
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

NAME = "cuda.tile"
NOBODY = -1


class Misuse(Exception):
    """A kernel does what the language does not define."""


class RoundingMode(Enum):
    """How a result is rounded; what is approximate there is exact here."""

    RN = "nearest_even"
    FULL = "full"
    APPROX = "approx"


class PaddingMode(Enum):
    """What a load has beyond the array's end."""

    UNDETERMINED = float("nan")
    ZERO = 0.0


class Slice(NamedTuple):
    """Elements of a dim, from `start` on."""

    start: int
    length: int


class Tile(Tensor):
    """A tensor with the methods of a tile."""

    def astype(self, dtype: torch.dtype) -> Tensor:
        """Converted, rounded to the nearest, ties to even."""
        return self.to(dtype)


class Constant:
    """The annotation of a parameter that is compiled in."""

    def __class_getitem__(cls, item: object) -> object:
        return item


class Block:
    """Where the block that is played stands in its grid."""

    place = (0, 0, 0)
    grid = (1, 1, 1)

    @classmethod
    def number(cls) -> int:
        """One for each block."""
        x, y, z = cls.place
        return x + cls.grid[0] * (y + cls.grid[1] * z)


class Array:
    """An array that a launch gives: the elements, and which block has written each in this launch."""

    def __init__(self, memory: Tensor, writers: Tensor) -> None:
        self.memory, self.writers = memory, writers
        self.dtype, self.shape, self.ndim = memory.dtype, tuple(memory.shape), memory.dim()

    def slice(self, axis: int, start: int, stop: int) -> "Array":
        """The elements from `start` to `stop` of a dim."""
        if not 0 <= start <= stop <= self.shape[axis]:
            raise Misuse(f"slice of dim {axis}: {int(start)} to {int(stop)} of {self.shape[axis]}")
        cut = [slice(None)] * self.ndim
        cut[axis] = slice(int(start), int(stop))
        return Array(self.memory[tuple(cut)], self.writers[tuple(cut)])

    def read(self, place: tuple[Tensor, ...], valid: Tensor, padding: Any) -> Tensor:
        """Elements at places that are valid, and padding elsewhere."""
        if not valid.any():
            return torch.full(valid.shape, padding, dtype=torch.float32).to(self.dtype).as_subclass(Tile)
        inside = tuple(torch.where(valid, index, 0) for index in place)
        writers = self.writers[inside][valid]
        if ((writers != NOBODY) & (writers != Block.number())).any():
            raise Misuse("a block reads what another one of the launch writes")
        found = _bits(self.memory)[inside].view(self.dtype)
        if valid.all():
            return found.as_subclass(Tile)
        other = torch.as_tensor(padding).to(torch.float32).to(self.dtype).broadcast_to(valid.shape)
        return torch.where(valid, _bits(found), _bits(other)).view(self.dtype).as_subclass(Tile)

    def write(self, place: tuple[Tensor, ...], valid: Tensor, value: Any) -> None:
        """Write elements at places that are valid."""
        value = torch.as_tensor(value)
        if value.dtype != self.dtype and value.dim():
            raise Misuse(f"{value.dtype} is written to an array of {self.dtype}")
        kept = _bits(value.to(self.dtype)).broadcast_to(valid.shape)[valid]
        where = tuple(index[valid] for index in place)
        writers = self.writers[where]
        if ((writers != NOBODY) & (writers != Block.number())).any():
            raise Misuse("two blocks of the launch write one element")
        self.writers[where] = Block.number()
        _bits(self.memory)[where] = kept
        if not torch.equal(_bits(self.memory)[where], kept):
            raise Misuse("one element is written twice, with different numbers")


class Unused(Array):
    """Something of another dtype, in the place of an array that the kernel must not touch."""

    def read(self, place: tuple[Tensor, ...], valid: Tensor, padding: Any) -> Tensor:
        raise Misuse("a kernel reads an array that the launch does not give")

    def write(self, place: tuple[Tensor, ...], valid: Tensor, value: Any) -> None:
        raise Misuse("a kernel writes an array that the launch does not give")


def _bits(x: Tensor) -> Tensor:
    """Numbers as integers of as many bits: torch indexes 8-bit floats no other way, and NaN equals itself."""
    x = x.as_subclass(Tensor)
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x if x.dtype == torch.bool else x.view(sizes[x.element_size()])


def _checked(shape: Sequence[int]) -> tuple[int, ...]:
    if any(size < 1 or size & (size - 1) for size in shape):
        raise Misuse(f"a tile of {tuple(shape)}: every dim is a power of two")
    return tuple(shape)


def _made(x: Tensor) -> Tensor:
    _checked(x.shape)
    return x.as_subclass(Tile)


def bid(axis: int) -> int:
    """The block's place in a dim of the grid."""
    return Block.place[axis]


def num_blocks(axis: int) -> int:
    """Blocks in a dim of the grid."""
    return Block.grid[axis]


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def num_tiles(array: Array, axis: int, shape: Any, order: Any = "C") -> int:
    """Tiles along a dim of the tiles, the last one whole or not."""
    dim = axis if order == "C" else order[axis]
    return cdiv(array.shape[dim], shape[axis])


def _tile_place(array: Array, index: Any, shape: Any, order: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """For each dim of the array the indices of a tile, and which are inside; the tile's dims follow `order`."""
    index, shape = (index,) if isinstance(index, int) else tuple(index), (shape,) if isinstance(shape, int) else shape
    shape = _checked(shape)
    order = tuple(range(array.ndim)) if order == "C" else order
    if not len(index) == len(shape) == len(order) == array.ndim:
        raise Misuse(f"a tile of {shape} at {index} in an array of {array.ndim} dims")
    place: list[Any] = [None] * array.ndim
    valid = torch.ones(shape, dtype=torch.bool)
    for axis, (dim, number, size) in enumerate(zip(order, index, shape, strict=True)):
        along = int(number) * size + torch.arange(size)
        if not 0 <= int(number) * size < array.shape[dim]:
            raise Misuse(f"a tile begins at {int(number) * size} of a dim of {array.shape[dim]}")
        along = along.view([-1 if axis == other else 1 for other in range(array.ndim)]).expand(shape)
        valid = valid & (along < array.shape[dim])
        place[dim] = along
    return tuple(place), valid


def load(
    array: Array, index: Any, shape: Any, *, order: Any = "C", padding_mode: PaddingMode = PaddingMode.UNDETERMINED,
    latency: int = 1, allow_tma: bool = True,
) -> Tensor:  # fmt: skip
    """The tile at an index, counted in tiles."""
    place, valid = _tile_place(array, index, shape, order)
    if padding_mode is PaddingMode.UNDETERMINED and not valid.all() and not array.dtype.is_floating_point:
        raise Misuse("padding of integers that is not determined")
    return array.read(place, valid, padding_mode.value)


def store(
    array: Array, index: Any, tile: Tensor, *, order: Any = "C", latency: int = 1, allow_tma: bool = True
) -> None:
    """Write a tile at an index, counted in tiles; what is outside the array is left out."""
    place, valid = _tile_place(array, index, tuple(tile.shape), order)
    array.write(place, valid, tile)


def _points(array: Array, indices: Any, mask: Any, check_bounds: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    indices = indices if isinstance(indices, tuple) else (indices,)
    if len(indices) != array.ndim:
        raise Misuse(f"{len(indices)} indices into an array of {array.ndim} dims")
    given = [torch.as_tensor(index).as_subclass(Tensor).long() for index in indices]
    given += [] if mask is None else [torch.as_tensor(mask).as_subclass(Tensor)]
    place = torch.broadcast_tensors(*given)
    allowed = torch.ones_like(place[0], dtype=torch.bool) if mask is None else place[-1]
    place = place[: array.ndim]
    inside = torch.ones_like(allowed)
    for index, size in zip(place, array.shape, strict=True):
        inside &= (index >= 0) & (index < size)
    if not check_bounds and not inside[allowed].all():
        raise Misuse("an index is out of bounds, which are not checked")
    return place, allowed & inside


def gather(array: Array, indices: Any, *, mask: Any = None, padding_value: Any = 0, check_bounds: bool = True,
           latency: int = 1) -> Tensor:  # fmt: skip
    """Elements at indices; padding outside the array or the mask."""
    place, valid = _points(array, indices, mask, check_bounds)
    return array.read(place, valid, padding_value)


def scatter(array: Array, indices: Any, value: Any, *, mask: Any = None, check_bounds: bool = True,
            latency: int = 1) -> None:  # fmt: skip
    """Write elements at indices; nothing outside the array or the mask."""
    place, valid = _points(array, indices, mask, check_bounds)
    array.write(place, valid, value)


def load_advanced_indexing(
    array: Array, indices: Any, *, padding_mode: PaddingMode = PaddingMode.UNDETERMINED, latency: int = 1,
    allow_tma: bool = True,
) -> Tensor:  # fmt: skip
    """Slices of an array at the indices of a tile, which stands in the place of one dim."""
    if len(indices) != array.ndim or len([index for index in indices if not isinstance(index, Slice)]) != 1:
        raise Misuse(f"{len(indices)} indices into an array of {array.ndim} dims, of which one is a tile")
    place = []
    for axis, index in enumerate(indices):
        along = int(index.start) + torch.arange(index.length) if isinstance(index, Slice) else index.long()
        place.append(along.as_subclass(Tensor).view([-1 if axis == other else 1 for other in range(array.ndim)]))
    place = list(torch.broadcast_tensors(*place))
    _checked(place[0].shape)
    valid = torch.ones_like(place[0], dtype=torch.bool)
    for along, size in zip(place, array.shape, strict=True):
        valid &= (along >= 0) & (along < size)
    if not valid.any():
        raise Misuse("a tile that lies outside its array")
    if padding_mode is PaddingMode.UNDETERMINED and not valid.all() and not array.dtype.is_floating_point:
        raise Misuse("padding of integers that is not determined")
    return array.read(tuple(place), valid, padding_mode.value)


def bitcast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as another dtype of their size."""
    if x.element_size() != dtype.itemsize:
        raise Misuse(f"bits of {x.dtype} as {dtype}")
    return x.as_subclass(Tensor).view(dtype).as_subclass(Tile)


def arange(size: int, *, dtype: torch.dtype, start: int = 0, step: int = 1) -> Tensor:
    """Numbers from `start` on."""
    return _made(start + step * torch.arange(size, dtype=dtype))


def full(shape: Any, value: Any, dtype: torch.dtype) -> Tensor:
    """A tile of one number."""
    return _made(torch.full((shape,) if isinstance(shape, int) else shape, value, dtype=dtype))


def zeros(shape: Any, dtype: torch.dtype) -> Tensor:
    """A tile of zeros."""
    return full(shape, 0, dtype)


def mma(x: Tensor, y: Tensor, acc: Tensor, *, use_fast_acc: bool = False) -> Tensor:
    """The product of two matrices, added to `acc`."""
    exact = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float8_e4m3fn: torch.float32,
             torch.float8_e5m2: torch.float32, torch.int8: torch.int32}  # fmt: skip
    if x.dtype != y.dtype or acc.dtype != exact.get(x.dtype):
        raise Misuse(f"a product of {x.dtype} and {y.dtype} in {acc.dtype}")
    if acc.shape[-2:] != (x.shape[-2], y.shape[-1]):
        raise Misuse(f"a product of {tuple(x.shape)} and {tuple(y.shape)} in {tuple(acc.shape)}")
    return _made(x.to(acc.dtype) @ y.to(acc.dtype) + acc)


def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same numbers in other dims."""
    return _made(x.reshape(shape))


def permute(x: Tensor, axes: Any) -> Tensor:
    """Dims in another order."""
    return x.permute(axes)


def transpose(x: Tensor) -> Tensor:
    """A matrix transposed."""
    return x.transpose(0, 1)


def broadcast_to(x: Tensor, shape: Any) -> Tensor:
    """Repeated along dims of one element."""
    return _made(x.broadcast_to(shape))


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """One or the other."""
    return torch.where(torch.as_tensor(condition), x, y).as_subclass(Tile)


def sum(x: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """The sum along a dim."""
    return x.sum(dim=axis, keepdim=keepdims, dtype=x.dtype)


def reduce(x: Any, axis: int, func: Any, identity: Any, *, keepdims: bool = False) -> Any:
    """One number, or several, joined by a function of two of them, along a dim: by halves, as any order may do."""
    parts = x if isinstance(x, tuple) else (x,)
    parts = tuple(part.movedim(axis, -1) for part in parts)
    while parts[0].shape[-1] > 1:
        pairs = [half for part in parts for half in part.chunk(2, dim=-1)]
        found = func(*pairs[::2], *pairs[1::2])
        parts = found if isinstance(found, tuple) else (found,)
    parts = tuple(part.movedim(-1, axis) if keepdims else part.squeeze(-1) for part in parts)
    return parts if isinstance(x, tuple) else parts[0]


def cumsum(x: Tensor, axis: int = 0) -> Tensor:
    """The sums up to each element along a dim."""
    return x.cumsum(dim=axis, dtype=x.dtype)


def max(x: Tensor, axis: Any = None, *, keepdims: bool = False, propagate_nan: bool = False) -> Tensor:
    """The largest along a dim; NaN is left out, unless it is to be propagated."""
    if not propagate_nan and x.dtype.is_floating_point:
        nothing = x.isnan().all(dim=axis, keepdim=keepdims)
        found = torch.amax(torch.where(x.isnan(), -float("inf"), x), dim=axis, keepdim=keepdims)
        return torch.where(nothing, float("nan"), found)
    return torch.amax(x, dim=axis, keepdim=keepdims)


def maximum(x: Any, y: Any, *, propagate_nan: bool = False) -> Tensor:
    """The larger of two; a number where one is NaN, unless that is to be propagated."""
    return _pair(torch.maximum if propagate_nan else torch.fmax, x, y)


def minimum(x: Any, y: Any, *, propagate_nan: bool = False) -> Tensor:
    """The smaller of two; a number where one is NaN, unless that is to be propagated."""
    return _pair(torch.minimum if propagate_nan else torch.fmin, x, y)


def _pair(function: Any, x: Any, y: Any) -> Tensor:
    like = x if isinstance(x, Tensor) else y
    a, b = (v if isinstance(v, Tensor) else torch.tensor(v, dtype=like.dtype) for v in (x, y))
    return function(a, b).as_subclass(Tile)


def truediv(x: Any, y: Any, *, rounding_mode: RoundingMode = RoundingMode.RN, flush_to_zero: bool = False) -> Tensor:
    """The quotient. Where subnormal numbers are flushed, a divisor that is one is taken for zero."""
    return _pair(torch.div, *(_flushed(value, flush_to_zero) for value in (x, y)))


def exp2(x: Tensor, *, flush_to_zero: bool = False) -> Tensor:
    """A power of two."""
    return _flushed(torch.exp2(_flushed(x, flush_to_zero)), flush_to_zero)


def _flushed(x: Any, flush: bool) -> Any:
    """Zero in the place of a subnormal number."""
    if not flush or not isinstance(x, Tensor):
        return x
    return torch.where(x.abs() < torch.finfo(x.dtype).tiny, x * 0.0, x).as_subclass(Tile)


def module() -> ModuleType:
    """A module with the language's names."""
    found = ModuleType(NAME)
    for name in ("exp", "log", "log2", "sqrt", "rsqrt", "tanh", "abs", "isnan", "floor"):
        setattr(found, name, getattr(torch, name))
    for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64",
                 "bool"):  # fmt: skip
        setattr(found, f"{name}_" if name == "bool" else name, getattr(torch, name))
    own = (Array, Constant, PaddingMode, RoundingMode, Slice, arange, bid, bitcast, broadcast_to, cdiv, cumsum, exp2,
           full, gather, load, load_advanced_indexing, max, maximum, minimum, mma, num_blocks, num_tiles, permute,
           reduce, reshape, scatter, store, sum, transpose, truediv, where, zeros)  # fmt: skip
    for thing in own:
        setattr(found, thing.__name__, thing)
    found.kernel = lambda function: function  # type: ignore[attr-defined]
    return found
