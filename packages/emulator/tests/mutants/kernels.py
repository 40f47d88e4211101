"""The kernels that are mutated: assembly that Triton made of `triton_kernels.py`, with their inputs and results."""

import functools
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opmux_emulator import Memory, Program

FOLDER = Path(__file__).parent / "kernels"
KERNELS = tuple(sorted(path.stem for path in FOLDER.glob("*.s")))
"""Names: kernel and arch."""


@dataclass(frozen=True)
class Call:
    """One launch of a kernel: what it gets, and what it must write.

    Attributes:
        arguments: arrays in order, and numbers; None stands for the output.
        expected: the right output, in float64.
        relative, absolute: by how much an element may miss it.
    """

    grid: tuple[int, ...]
    threads: int
    lds: int
    arguments: tuple[np.ndarray | int | None, ...]
    expected: np.ndarray
    relative: float
    absolute: float

    def place(self, memory: Memory) -> tuple[list[int], np.ndarray]:
        """The arguments at device addresses, the output as memory that nothing wrote; and the output's array."""
        out = np.full(self.expected.shape, 0xCD, np.uint8).repeat(4, -1).view(np.float32)
        placed = []
        for k, value in enumerate(self.arguments):
            if value is None:
                placed.append(memory.add(out, "out", written=False))
            else:
                placed.append(value if isinstance(value, int) else memory.add(value, f"argument {k}", writable=False))
        return placed, out


def source_of(name: str) -> str:
    """The kernel's assembly."""
    return (FOLDER / f"{name}.s").read_text()


def assemble(text: str, arch: str) -> Program:
    """A whole assembly file as a program.

    Raises:
        RuntimeError: the assembler rejects it.
    """
    return Program(linked(text, arch))


def linked(text: str, arch: str) -> bytes:
    """The code object of a whole assembly file.

    Raises:
        RuntimeError: the assembler rejects it.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        from triton._C.libtriton import amd
        from triton.backends.amd.compiler import assemble_amdgcn

        source, target = Path(folder, "k.o"), Path(folder, "k.hsaco")
        source.write_bytes(assemble_amdgcn(text, arch, ""))
        amd.link_hsaco(str(source), str(target))
        return target.read_bytes()


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounded towards zero to bfloat16, as 16-bit words."""
    return (x.astype("f4").view("u4") >> 16).astype("u2")


def widened(words: np.ndarray) -> np.ndarray:
    return (words.astype("u4") << 16).view("f4").astype("f8")


@functools.cache
def calls_of(name: str) -> tuple[Call, ...]:
    """Several launches of a kernel, of different sizes and contents."""
    return tuple(_calls(name.partition("-")[0], np.random.default_rng(7)))


def _calls(kernel: str, random: np.random.Generator) -> Iterator[Call]:
    if kernel == "add":
        for n in (1008, 2048):
            x, y = random.standard_normal((2, n)).astype("f4")
            yield Call((-(-n // 512),), 256, 0, (x, y, None, n), x.astype("f8") + y, 1e-7, 0)
    elif kernel == "softmax":
        for rows, columns, spread in ((3, 496, 1), (2, 512, 60)):
            x = bf16(spread * random.standard_normal((rows, columns)))  # a wide spread takes exp past its usual range
            e = np.exp(widened(x) - widened(x).max(-1, keepdims=True))
            yield Call((rows,), 256, 16, (x, None, columns), e / e.sum(-1, keepdims=True), 3e-5, 1e-37)
    else:
        for m, n, k in ((64, 32, 96), (32, 64, 64), (32, 32, 32)):
            a, b = random.standard_normal((m, k)).astype("f2"), random.standard_normal((n, k)).astype("f2")
            exact = a.astype("f8") @ b.astype("f8").T
            yield Call((m // 32, n // 32), 128, 8192, (a, b, None, m, n, k), exact, 0, 2e-5)
