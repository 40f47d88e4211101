"""A kernel that is compiled and loaded when it is first launched on a device, and then only launched."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from opmux.plugin import InvalidArgument
from opmux_jit.cache.entry import Entry
from opmux_jit.cache.layers import machine_code
from opmux_jit.compilers.source import Source
from opmux_jit.launching.devices import current_stream, device
from opmux_jit.launching.modules import Module, failure
from opmux_jit.native.library import launcher

LARGE_SHARED_BYTES = 48 * 1024
"""Static and dynamic shared memory beyond which the dynamic part must be asked for (CUDA programming guide, "Shared
Memory")."""

Launch = Callable[..., None]
"""A native launch: called with a grid's three sizes, a stream, and the arguments."""


@dataclass(frozen=True)
class Shape:
    """How a kernel is launched: what stays the same over its launches.

    Attributes:
        block: threads of a block, in up to three dims.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster, in up to three dims.
        cooperative: whether all blocks must run at once.
        dependent: whether the kernel may start while the one before it still runs (programmatic dependent launch).
    """

    block: tuple[int, ...]
    shared: int = 0
    cluster: tuple[int, ...] = (1,)
    cooperative: bool = False
    dependent: bool = False


class Address(NamedTuple):
    """An argument of a launch that is made again: the address of the call's tensor at this place, plus bytes."""

    tensor: int
    offset: int = 0


class MapOf(NamedTuple):
    """An argument of a launch that is made again: the tensor map that ``make`` returns for the tensor at this place.

    It is kept by the tensor's address.
    """

    tensor: int
    make: Callable[[torch.Tensor], bytes]


class Kernel:
    """A kernel of a source.

    Called with a grid and its arguments, it launches on the device of the first tensor, on torch's current stream. For
    loops that launch at the highest rate, `on` returns the native launch of a device.
    """

    def __init__(
        self, source: Source, name: str, signature: str, shape: Shape, compiler: str | None = None,
        entry: Entry | None = None,
    ) -> None:  # fmt: skip
        self.source, self.name, self.signature, self.shape = source, name, signature, shape
        self._compiler, self._entry = compiler, entry
        self._launches: dict[int, Launch] = {}
        self._shapes: dict[int, Any] = {}

    def __call__(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Launch.

        Args:
            grid: blocks, in up to three dims; where one is 0, nothing is launched.
            *arguments: the kernel's, as its signature says.

        Raises:
            InvalidArgument: where no argument is a tensor on a GPU, or they are on several, or the grid has no or more
                than three dims.
            TypeError: where an argument does not fit the signature; the message names it.
            BuildFailed: where the kernel does not compile or load.
            LaunchFailed: where the driver refuses the launch.
            torch.OutOfMemoryError: where the device has too little memory to load or launch it.
        """
        if not 1 <= len(grid) <= 3:
            raise InvalidArgument(f"{self.name}: `grid` expected one to three numbers of blocks, got {grid!r}")
        index = self._device_of(arguments)
        x, y, z = (*grid, 1, 1)[:3]
        self.on(index)(x, y, z, current_stream(index), *arguments)

    def _device_of(self, arguments: tuple[Any, ...]) -> int:
        found = {a.device for a in arguments if isinstance(a, torch.Tensor)}
        if len(found) != 1 or next(iter(found)).type != "cuda":
            where = ", ".join(sorted(map(str, found))) or "no tensor"
            raise InvalidArgument(
                f"{self.name}: `arguments` expected tensors of one GPU, got {where}; move them, or use on(device)"
            )
        return int(found.pop().index)

    def on(self, index: int) -> Launch:
        """The native launch of a device: ``launch(grid_x, grid_y, grid_z, stream, *arguments)``.

        It checks the kinds of the arguments, not the device of tensors.

        Raises:
            BuildFailed: where the kernel does not compile or load.
        """
        return self._launches.get(index) or self._load(index)

    def repeating(
        self, index: int, grid: tuple[int, int, int], arguments: Sequence[Any], tensors: int
    ) -> Callable[..., bool]:
        """A launch to be made again and again, with other tensors of the same shapes, strides and dtypes.

        Args:
            index: of the device.
            grid: blocks.
            arguments: the kernel's, as its signature says; what depends on a tensor as `Address` or `MapOf`.
            tensors: how many tensors the launch is called with.

        Returns:
            A native function. Called with the tensors, it launches on torch's current stream and returns True; where
            the address of one is not a multiple of 16, it launches nothing and returns False.

        Raises:
            BuildFailed: where the kernel does not compile or load.
            TypeError: where an argument does not fit the signature.
        """
        self.on(index)
        values = tuple(... if isinstance(a, (Address, MapOf)) else a for a in arguments)
        addresses = [(i, a.tensor, a.offset) for i, a in enumerate(arguments) if isinstance(a, Address)]
        maps = [(i, a.tensor, a.make) for i, a in enumerate(arguments) if isinstance(a, MapOf)]
        step = (self._shapes[index], grid, values, addresses, maps)
        found: Callable[..., bool] = launcher().launches([step], tensors, torch._C._cuda_getCurrentRawStream, index)
        return found

    def _load(self, index: int) -> Launch:
        entry = self._entry or machine_code(self.source, self._compiler)  # outside the lock: it may take seconds
        where = device(index, self.source.vendor)
        native, shape = launcher(), self.shape
        module = Module(entry, where)
        function = module.function(self.name)
        dynamic = shape.shared if where.vendor == "nvidia" else 0
        if dynamic and dynamic + function.attribute("static_shared_bytes") > LARGE_SHARED_BYTES:
            function.set_attribute("dynamic_shared_bytes", dynamic)
        try:
            prepared = native.shape(
                where.driver, index, function.handle, self.name, self.signature, _three(shape.block),
                shape.shared, _three(shape.cluster), False, shape.cooperative, shape.dependent, module,
            )  # fmt: skip
            made: Launch = native.launch(prepared)
        except native.DriverError as error:
            raise failure(self.name, error, str(error.args[0])) from None
        self._shapes.setdefault(index, prepared)
        return self._launches.setdefault(index, made)


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def load(
    source: Source,
    name: str,
    signature: str,
    *,
    block: int | tuple[int, ...],
    shared: int = 0,
    cluster: int | tuple[int, ...] = 1,
    cooperative: bool = False,
    dependent: bool = False,
    compiler: str | None = None,
    entry: Entry | None = None,
) -> Kernel:
    """A kernel of a source; it is compiled or found in the cache when it is first launched.

    Args:
        source: what has the kernel.
        name: the kernel's name, declared ``extern "C" __global__``.
        signature: a letter for each argument: ``p`` a pointer (a tensor, an address or None); ``b h i q`` signed
            integers of 8 to 64 bits, ``B H I Q`` unsigned ones; ``?`` a bool; ``e`` float16, ``E`` bfloat16, ``f``
            float32, ``d`` float64; ``m`` a tensor map, passed by value as ``const __grid_constant__ CUtensorMap``.
        block, shared, cluster, cooperative, dependent: see `Shape`.
        compiler: as for `machine_code`.
        entry: the source's machine code, where the caller has it already; None finds or builds it.

    Raises:
        InvalidArgument: where a letter or a size is wrong.
    """
    for argument, sizes in (("block", block), ("cluster", cluster)):
        every = (sizes,) if isinstance(sizes, int) else sizes
        if not 1 <= len(every) <= 3 or any(size < 1 for size in every) or math.prod(every) > 1024:
            raise InvalidArgument(f"{name}: `{argument}` expected one to three sizes of 1 or more, got {sizes!r}")
    for letter in signature:
        if letter not in KINDS:
            raise InvalidArgument(
                f"{name}: `signature` expected letters of {KINDS}, got {letter!r}; see opmux_jit.load"
            )
    blocks = (block,) if isinstance(block, int) else tuple(block)
    clusters = (cluster,) if isinstance(cluster, int) else tuple(cluster)
    return Kernel(source, name, signature, Shape(blocks, shared, clusters, cooperative, dependent), compiler, entry)


KINDS = "pbhiqBHIQ?eEfdm"
