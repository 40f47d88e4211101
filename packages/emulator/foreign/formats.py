"""Number formats as numpy arrays of their codes, and the kernarg segments of the programs."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from opmux_emulator import Memory

Array = npt.NDArray[Any]
SLOT = 16
"""Bytes that each argument takes in the kernarg segment of these programs."""


def bf16(x: Array) -> Array:
    """The codes of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(x, "f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")


def of_bf16(codes: Array) -> Array:
    return (codes.astype("u4") << 16).view("f4")


def table(exponent_bits: int, mantissa_bits: int, bias: int) -> Array:
    """The value of each code of a small float without infinities; the NaN codes hold values that no case uses."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    normal = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    small = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return np.where(codes >> (exponent_bits + mantissa_bits), -1, 1) * np.where(exponent == 0, small, normal)


E4M3FNUZ, E4M3FN, E2M1 = table(4, 3, 8), table(4, 3, 7), table(2, 1, 1)


class Slots:
    """A kernarg segment of slots of sixteen bytes, and the memory that its pointers are in."""

    def __init__(self) -> None:
        self.memory, self.data = Memory(), b""

    def pointer(self, array: Array | None, name: str = "", written: bool = True) -> "Slots":
        address = 0 if array is None else self.memory.add(array, name, written=written)
        return self._put(struct.pack("<Q", address))

    def number(self, *values: int) -> "Slots":
        for value in values:
            self._put(struct.pack("<I", value))
        return self

    def real(self, *values: float) -> "Slots":
        for value in values:
            self._put(struct.pack("<f", value))
        return self

    def _put(self, data: bytes) -> "Slots":
        self.data += data.ljust(SLOT, b"\0")
        return self

    def segment(self, size: int) -> bytes:
        """The segment as a kernel of that many bytes wants it; the last slot is often cut."""
        return self.data[:size].ljust(size, b"\0")


def tiles(x: Array, rows: int, bytes_of_columns: int) -> Array:
    """A matrix as matrix instructions read it: blocks of ``rows`` by two of 16 bytes (of ``bytes_of_columns``) in turn.

    The programs' pre-shuffled weights: ``[n, k]`` becomes ``[n / rows, k / b, b / 16 bytes, rows, 16 bytes]``.
    """
    *outer, n, k = x.shape
    inner = 16 // x.itemsize
    block = bytes_of_columns // x.itemsize
    y = x.reshape(*outer, n // rows, rows, k // block, block // inner, inner)
    return np.ascontiguousarray(np.moveaxis(y, -4, -2)).reshape(x.shape)
