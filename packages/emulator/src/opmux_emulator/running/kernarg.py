"""The kernarg segment: explicit arguments, and the hidden ones (LLVM's AMDGPUUsage, "Kernarg Segment")."""

import struct
from collections.abc import Sequence

import numpy as np

from opmux_emulator.codeobject.metadata import Argument
from opmux_emulator.codeobject.program import Kernel
from opmux_emulator.errors import LaunchError
from opmux_emulator.running.memory import Memory

Value = int | float | bytes | np.ndarray | np.generic | None


def pack(kernel: Kernel, values: Sequence[Value], grid: Sequence[int], block: Sequence[int], memory: Memory) -> bytes:
    """The kernarg segment for a launch.

    Args:
        kernel: with metadata that describe its arguments.
        values: explicit arguments in order: an array for a pointer (added to ``memory``), an address, a number, a numpy
            scalar, bytes of the argument's size, or None for a null pointer. Trailing pointers may be left out: null.
        grid: workgroups in x, y, z.
        block: threads of a workgroup in x, y, z.
        memory: where arrays are added.

    Raises:
        LaunchError: no metadata, too many or too few values, or one that does not fit its argument.
    """
    if kernel.metadata is None or not kernel.metadata.arguments:
        if values:
            raise LaunchError(f"{kernel.name}: its metadata describe no arguments: pass the kernarg segment as bytes")
        return bytes(kernel.kernarg_size)
    explicit = [a for a in kernel.metadata.arguments if not a.is_hidden]
    missing = explicit[len(values) :]
    if len(values) > len(explicit) or any(not a.is_pointer for a in missing):
        raise LaunchError(f"{kernel.name}: expected {len(explicit)} arguments, got {len(values)}")
    size = max(kernel.kernarg_size, *(a.offset + a.size for a in kernel.metadata.arguments))
    data = bytearray(size)
    for argument, value in zip(explicit, values, strict=False):
        data[argument.offset : argument.offset + argument.size] = encode(kernel, argument, value, memory)
    fill_hidden(kernel, data, grid, block)
    return bytes(data)


def fill_hidden(
    kernel: Kernel, data: bytearray, grid: Sequence[int], block: Sequence[int], dynamic_lds: int = 0
) -> None:
    """Write the hidden arguments into a kernarg segment."""
    for argument in kernel.metadata.arguments if kernel.metadata else ():
        if argument.is_hidden:
            number = dynamic_lds if argument.kind == "hidden_dynamic_lds_size" else hidden(argument.kind, grid, block)
            number &= (1 << 8 * argument.size) - 1
            data[argument.offset : argument.offset + argument.size] = number.to_bytes(argument.size, "little")


def encode(kernel: Kernel, argument: Argument, value: Value, memory: Memory) -> bytes:
    """One argument's bytes."""
    if isinstance(value, np.ndarray):
        value = memory.add(value, argument.name)
    if isinstance(value, np.generic):
        value = value.tobytes()
    if isinstance(value, bool | int) or value is None:
        value = int(value or 0)
        return (value & ((1 << 8 * argument.size) - 1)).to_bytes(argument.size, "little")
    if isinstance(value, float):
        layout = {2: "<e", 4: "<f", 8: "<d"}.get(argument.size)
        if layout is not None:
            return struct.pack(layout, value)
    elif len(value) == argument.size:
        return value
    got = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)
    raise LaunchError(f"{kernel.name}: argument `{argument.name}`: expected {argument.size} bytes, got {got}")


def hidden(kind: str, grid: Sequence[int], block: Sequence[int]) -> int:
    """The value of a hidden argument; 0 where it points to something of the runtime."""
    axis = "xyz".find(kind[-1])
    if kind.startswith("hidden_block_count_"):
        return grid[axis]
    if kind.startswith("hidden_group_size_"):
        return block[axis]
    if kind == "hidden_grid_dims":
        return 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    return 0  # hidden_remainder_* too: the grid is a whole number of workgroups
