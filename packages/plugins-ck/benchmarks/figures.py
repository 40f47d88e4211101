"""Model figures of the instances that calls get, beside the kernels of Triton's backend and of the assembly one.

``python packages/plugins-ck/benchmarks/figures.py`` prints a table in Markdown. Each backend's own choice for a call is
compiled, and one workgroup of it runs on the emulator under its model of the schedule. **Nothing of this is measured on
a GPU.** CK's instances take half a minute each to compile, once; Composable Kernel is found as the backend finds it.
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opmux.plugin import registered_ops, takers
from opmux_ck.building.instances import code_of
from opmux_emulator import Memory, Program, Report, launch
from opmux_emulator.triton_launches import argument_of
from opmux_triton.aot.build import compile_launch
from opmux_triton.launch import recording

sys.path.append(str(Path(__file__).parents[2] / "plugins-asm" / "benchmarks"))

import launches

ARCH = "gfx942"
BF16, FNUZ = torch.bfloat16, torch.float8_e4m3fnuz
CK_TARGETS = ("opmux_ck.gemm.targets", "opmux_ck.gemm.grouped_targets", "opmux_ck.attention.targets")


@dataclass(frozen=True)
class Call:
    """A call of a model.

    Attributes:
        name: as the table shows it.
        op: what is called.
        tensors: by position; their values do not matter to the model, but for scores.
        options: by keyword.
    """

    name: str
    op: str
    tensors: tuple[Tensor | None, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def chosen(self, backend: str) -> tuple[Any, dict[str, Any]]:
        """A backend's target, and what it is called with, its config among it."""
        taker = next(iter(takers(registered_ops()[self.op], *self.tensors, arch=ARCH, backend=backend, **self.options)))
        module, _, name = taker.implementation.target.partition(":")
        given = {**taker.call.tensors, **taker.call.options, "config": taker.config()}
        return getattr(importlib.import_module(module), name), given


def zeros(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """Of a product."""
    return torch.zeros(shape, dtype=torch.uint8 if dtype is FNUZ else dtype).view(dtype)


def ones(*shape: int) -> Tensor:
    """Scales."""
    return torch.ones(shape)


def calls() -> Iterator[Call]:
    """Products of a layer of 4096 by 4096 with many and few rows, and attention of a prompt."""
    n = k = 4096
    for rows in (4096, 1024, 256, 16):
        yield Call(f"`linear`, {rows} rows", "linear", (zeros(rows, k), zeros(n, k), None))
    codes = zeros(4096, k, dtype=FNUZ), zeros(n, k, dtype=FNUZ)
    out = {"out_dtype": BF16}
    yield Call("`scaled_linear`, fp8, channels, 4096 rows", "scaled_linear", (*codes, ones(4096, 1), ones(n, 1)), out)
    scales = ones(4096, k // 128), ones(n // 128, k // 128)
    yield Call("`scaled_linear`, fp8, blocks, 4096 rows", "scaled_linear", (*codes, *scales), out)
    torch.manual_seed(0)
    heads = tuple(torch.randn(1, 2048, count, 128).to(BF16) for count in (8, 2, 2))
    yield Call("`attention`, 2048 tokens, heads of 128", "attention", heads)


def by_ck(call: Call) -> tuple[str, Report]:
    """The instance of CK, with a workgroup of it."""
    found: list[tuple[Any, tuple[Any, ...]]] = []

    def note(instance: Any, grid: tuple[int, int, int], *arguments: Any) -> None:
        found.append((instance, arguments))

    for name in CK_TARGETS:
        vars(importlib.import_module(name))["launch"] = note
    target, given = call.chosen("ck")
    target(**given)
    instance, arguments = found[0]
    memory = Memory()
    values = [argument_of(value, memory) for value in arguments]
    code = code_of(instance, ARCH).code
    report = launch(
        Program(code), instance.kernel, (1, 1, 1), (instance.threads,), packed(values, instance.signature),
        memory=memory, model=True, check=False,
    )  # fmt: skip
    return instance.name, report


def packed(values: list[Any], signature: str) -> list[Any]:
    """Numbers as the kernel takes them."""
    kinds = {"i": np.int32, "f": np.float32}
    return [kinds[letter](value) if letter in kinds else value for value, letter in zip(values, signature, strict=True)]


def by_triton(call: Call) -> tuple[str, Report]:
    """The kernel of Triton's backend, with a program of it."""
    target, given = call.chosen("triton")
    with recording(ARCH) as recorded:
        target(**given)
    one = recorded.launches[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled, values = compile_launch(one, ARCH)
    memory, threads = Memory(), 64 * compiled.metadata.num_warps
    arguments = [argument_of(value, memory) for value in values]
    report = launch(
        Program(compiled.asm["hsaco"]), None, (1, 1, 1), (threads,), arguments, memory=memory, model=True,
        dynamic_lds=compiled.metadata.shared, check=False,
    )  # fmt: skip
    return str(given["config"]), report


def by_asm(call: Call) -> tuple[str, Report]:
    """The kernel in assembly, with a workgroup of it."""
    if call.op == "attention":
        return "128 queries", launches.attention(ARCH, 2048)[1]
    _, given = call.chosen("asm")
    config = given["config"]
    dtype = "fp8" if call.op == "scaled_linear" else "bf16"
    k_bytes, blocks = (4096 if dtype == "fp8" else 8192), "blocks" in call.name
    report = launches.product(ARCH, dtype, config.rows, config.columns, k_bytes, blocks=blocks)[1]
    return str(config), report


def busy(report: Report) -> str:
    """The share of the loop in which the matrix unit works."""
    assert report.schedule is not None
    loop = report.schedule.loop
    return "-" if loop is None else f"{loop.mfma_utilisation:.3f}"


def main() -> None:
    """Print the table."""
    print("| call | instance of CK | CK | Triton | assembly |\n|---|---|---|---|---|")
    for call in calls():
        cells = []
        for by in (by_ck, by_triton, by_asm):
            try:
                name, report = by(call)
                cells.append((name, busy(report)))
            except Exception as error:  # one backend's lack must not hide the others
                cells.append((f"{type(error).__name__}: {' '.join(str(error).split())[:80]}", "-"))
            print(call.name, by.__name__, cells[-1], file=sys.stderr, flush=True)
        print(f"| {call.name} | `{cells[0][0]}` | {' | '.join(cell[1] for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
