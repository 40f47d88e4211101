"""Tile kernels as opmux-jit compiles, finds and launches them, on torch's current stream."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import CaptureRefused, InvalidArgument, device_arch
from opmux_cutile.archs import BACKEND
from opmux_cutile.cubin import checked
from opmux_cutile.parameters import Parameter, flag
from opmux_jit import Entry, Kernel, Source, add_shipped, load, machine_code
from opmux_jit.launching.devices import current_stream

BUILT = Path(__file__).parent / "built"
"""Where a wheel has its cubins; a tree has none."""
add_shipped(BUILT)

MOST_BYTES = (1 << 31) - 1
"""Of a matrix in a launch: kernels count elements, and may count bytes, in 32 bits."""


OTHERS = re.compile(r"^from (opmux_cutile\.\S+) import .*$", re.MULTILINE)
"""What a kernel's module imports from another one: a kernel is compiled from one file."""


@cache
def text_of(module: str) -> str:
    """The source of a module of kernels, with that of others in the place of what it imports from them.

    It is read and never imported: that would take cuda.tile.
    """
    package, _, name = module.rpartition(".")
    text = files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return OTHERS.sub(lambda line: text_of(line[1]), text)


@dataclass(frozen=True, eq=False)
class TileKernel:
    """A kernel with everything that is decided before its launch.

    Attributes:
        op: which op it is for.
        module: the module that has its source.
        name: its function.
        parameters: of the function, in order.
        hints: the compiler's: ``occupancy``, ``num_ctas``, ``num_worker_warps``.
    """

    op: str
    module: str
    name: str
    parameters: tuple[Parameter, ...]
    hints: Mapping[str, int] = field(default_factory=dict)
    _launches: dict[int, Callable[..., None]] = field(default_factory=dict)
    _kernels: dict[int, Kernel] = field(default_factory=dict)

    @property
    def letters(self) -> str:
        """The launcher's signature."""
        return "".join(parameter.letters for parameter in self.parameters)

    def source(self, arch: str) -> Source:
        """What is compiled for an arch."""
        flags = (
            f"--kernel={self.name}",
            *(flag(parameter) for parameter in self.parameters),
            *(f"--hint={name}={value}" for name, value in sorted(self.hints.items())),
        )
        text = text_of(self.module)
        return Source(self.name, text, arch, flags, backend=BACKEND, op=self.op, language="cutile")

    def code(self, arch: str) -> Entry:
        """The machine code for an arch, found in the cache or a bundle, or compiled; it uses no local memory.

        Raises:
            BuildFailed: there is none and it cannot be compiled, or it spills registers.
            BuildDeferred: it must be compiled, and calls are not to wait for that.
        """
        return checked(machine_code(self.source(arch)))

    def on(self, index: int) -> Callable[..., None]:
        """The native launch of a GPU; the kernel is found in the cache or a bundle, or compiled.

        Raises:
            BuildFailed: as `code`, or the driver does not load it.
            CaptureRefused: it is not loaded yet, and a graph is being captured.
        """
        return self._launches.get(index) or self._load(index)

    def _load(self, index: int) -> Callable[..., None]:
        if torch.cuda.is_current_stream_capturing():
            raise CaptureRefused(
                f"cutile: {self.name} is not loaded yet, and a graph is being captured; run the call once before the "
                "capture"
            )
        code = self.code(device_arch("cuda", index).name)
        loaded = load(code.source, self.name, self.letters, block=1, entry=code)
        made = loaded.on(index)
        self._kernels.setdefault(index, loaded)
        return self._launches.setdefault(index, made)

    def repeating(
        self, index: int, grid: tuple[int, int, int], arguments: Sequence[Any], tensors: int
    ) -> Callable[..., bool]:
        """A native launch on a GPU that is made again, with other tensors: see `opmux_jit.Kernel.repeating`."""
        self.on(index)
        return self._kernels[index].repeating(index, grid, arguments, tensors)


Launch = tuple[TileKernel, tuple[int, int, int], tuple[Any, ...]]


class _Here(threading.local):
    """What the thread's launches are noted in: several threads launch at once, as autograd's do, one for each GPU.

    Attributes:
        recorded: launches on tensors that are on no GPU.
        noted: launches that were made.
        others: kernels that calls like those recorded launch instead.
    """

    recorded: list[Launch] | None = None
    noted: list[Launch] | None = None
    others: list[TileKernel] | None = None


_here = _Here()


def launch(kernel: TileKernel, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launch a kernel on the current stream of the device of its first argument.

    Args:
        kernel: what is launched.
        grid: blocks, none 0.
        *arguments: its arguments without the constants; the first one a tensor.

    Raises:
        BuildFailed: there is no machine code of it and it cannot be compiled, or that spills registers, or the driver
            does not load it.
        CaptureRefused: it is not loaded yet, and a graph is being captured.
        InvalidArgument: the tensors are not on a GPU.
        LaunchFailed: the driver refuses the launch.
    """
    index = arguments[0].get_device()
    given: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            given += (argument, *argument.shape, *argument.stride())
        else:
            given.append(argument)
    if index >= 0:
        kernel.on(index)(*grid, current_stream(index), *given)
    elif (recorded := _here.recorded) is not None:
        recorded.append((kernel, grid, tuple(given)))
    else:
        raise InvalidArgument(
            f"cutile: {kernel.name}: `arguments` expected tensors on a GPU, got one on "
            f"{arguments[0].device.type}; move it"
        )
    if (noted := _here.noted) is not None:
        noted.append((kernel, grid, tuple(given)))


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within it, the thread's launches on tensors that are on no GPU are noted in the list and not made."""
    before, _here.recorded = _here.recorded, []
    try:
        yield _here.recorded
    finally:
        _here.recorded = before


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Within it, launches that the thread makes are noted in the list too."""
    before, _here.noted = _here.noted, []
    try:
        yield _here.noted
    finally:
        _here.noted = before


@contextmanager
def naming_others() -> Iterator[list[TileKernel]]:
    """Within it, kernels that the thread's calls launch on GPUs of other sizes, or with other lengths, are listed.

    They are built ahead with those that are launched.
    """
    before, _here.others = _here.others, []
    try:
        yield _here.others
    finally:
        _here.others = before


def others() -> list[TileKernel] | None:
    """What a call appends such kernels to; None where nobody asks for them."""
    return _here.others


def aligned(*tensors: Tensor) -> bool:
    """Whether the addresses, and all strides but the last ones, are multiples of 16 bytes."""
    for tensor in tensors:
        size = tensor.element_size()
        if tensor.data_ptr() % 16 or any(step * size % 16 for step in tensor.stride()[:-1]):
            return False
    return True


def in_launches(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matrices of equally many rows, in parts that a launch can address."""
    rows = len(matrices[0])
    row_bytes = max(max(t.stride(0), t.shape[1], 1) * t.element_size() for t in matrices)
    most = max(MOST_BYTES // row_bytes, 1)
    if rows <= most:
        yield matrices
        return
    for first in range(0, rows, most):
        yield tuple(rows_of(t[first : first + most], t.shape[1]) for t in matrices)


def rows_of(tensor: Tensor, columns: int) -> Tensor:
    """A tensor as a matrix of rows; a single row gets the stride of a packed one, for its own may be anything."""
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, columns)
    return rows.as_strided((1, columns), (columns, 1)) if len(rows) == 1 else rows
