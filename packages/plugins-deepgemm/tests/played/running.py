"""Runs a kernel's own text on the CPU: its instructions are played by ``instructions.h``."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product, body, read
from opmux_deepgemm.grids import grid_of
from opmux_jit.native.build import compiler

HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused")


class Stopped(Exception):
    """A kernel did what no kernel may do, or went on for ever."""


@dataclass(frozen=True)
class Operands:
    """What a product is of: x and w, with scales where they are codes, and a bias or None.

    ``offsets`` and ``sizes`` say which rows belong to which group: both or the first for ragged rows, the last
    alone for masked ones. The product is added to ``added_to`` where that is given. Of gradients of weights x is
    dy, and w is x.
    """

    x: Tensor
    w: Tensor
    x_scale: Tensor | None = None
    w_scale: Tensor | None = None
    bias: Tensor | None = None
    offsets: Tensor | None = None
    sizes: Tensor | None = None
    added_to: Tensor | None = None

    def product(self, out: torch.dtype) -> Product:
        n, k = self.w.shape[-2:]
        names = [str(dtype).removeprefix("torch.") for dtype in (self.x.dtype, out)]
        layout = "ragged" if self.offsets is not None else "masked" if self.sizes is not None else ""
        across = (bool(pitch(self.x)), bool(pitch(self.w)))
        return Product(*names, n, k, self.bias is not None, layout, self.added_to is not None, *across)


def pitch(operand: Tensor) -> int:
    """Elements from one column of k to the next of an operand that lies across k; else 0."""
    return operand.stride(-1) if operand.stride(-1) > 1 else 0


def build(product: Product, config: Config, operands: Operands, folder: Path) -> Path:
    """Compile a kernel with the instructions that are played."""
    strides = [
        stride
        for scale in (operands.x_scale, operands.w_scale)
        for stride in ((0, 0, 0) if scale is None else ((0,) * (3 - scale.dim()) + scale.stride()))
    ]
    names = [f"{matrix}_SCALE_{dim}" for matrix in "XW" for dim in ("GROUP", "ROW", "BLOCK")]
    text = "".join(
        [
            (HERE / "instructions.h").read_text(),
            "#define SMALL\n" if config.kernel == "small" else "",
            f"#define {'SCALED_' * product.scaled}GRADIENTS\n" * product.gradient,
            "#define SCALES_COPIED\n" * (bool(product.x_scales) and not product.w_scales),
            "#define ADDED\n" * bool(product.w_scales),
            "#define LAST_TILE_MOVED\n" * product.moves,
            read("layouts.cuh"),
            body(product, config),
            f"constexpr long X_PITCH = {pitch(operands.x)}, W_PITCH = {pitch(operands.w)};\n",
            *(
                f"constexpr long {name}_MATRIX = {operand.stride(0) if operand.dim() == 3 else 0};\n"
                for name, operand in (("X", operands.x), ("W", operands.w))
            ),
            *(f"constexpr long {name} = {stride};\n" for name, stride in zip(names, strides, strict=True)),
            (HERE / "main.cpp.part").read_text(),
        ]
    )
    source, program = folder / "kernel.cpp", folder / "kernel"
    source.write_text(text)
    command = [compiler(), "-std=c++17", "-O1", *WARNINGS, "-o", str(program), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return program


def run(program: Path, product: Product, config: Config, operands: Operands, seed: int, units: int = 3) -> Tensor:
    """Run a kernel; results are poisoned before.

    Args:
        program: as `build` made it.
        product: what it computes.
        config: of the kernel.
        operands: what it is given.
        seed: of the threads' order; odd ones do background work at once, even ones as late as possible.
        units: multiprocessors of the GPU that is played.

    Raises:
        Stopped: with what is wrong with the kernel.
    """
    folder, m = program.parent, operands.x.shape[-2]
    groups = operands.w.shape[0] if product.groups else 1
    rows = operands.x.shape[:-1]
    if product.gradient:
        assert operands.added_to is not None
        groups, rows = len(operands.added_to), operands.added_to.shape[:-1]
    for name in ("x", "w", "x_scale", "w_scale", "bias", "offsets", "sizes"):
        tensor = getattr(operands, name)
        if tensor is not None:
            memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # its strides stay
            (folder / name).write_bytes(memory.numpy().tobytes())
    out = {"bfloat16": torch.bfloat16, "float32": torch.float32}[product.out]
    poison = b"\xff" * (rows.numel() * product.n * product.out_bytes)
    (folder / "y").write_bytes(poison if operands.added_to is None else operands.added_to.numpy().tobytes())
    in_clusters = units // config.cluster * config.cluster
    grid = (in_clusters, 1) if product.gradient else grid_of(config, m, product.n, units, product.groups, groups)[:2]
    shared = config.shared_bytes(product.out_bytes, product.accumulate and (product.scaled or not product.gradient))
    numbers = (m, config.threads, config.cluster, *grid, shared, seed, groups)
    command = [str(program), *map(str, numbers)]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise Stopped(done.stderr)
    found = torch.frombuffer(bytearray((folder / "y").read_bytes()), dtype=out)
    return found.view(*rows, product.k if product.gradient else product.n)
