"""Rows and calls of linear on an imaginary device, whose times follow a law that is known."""

import math
import random
from collections.abc import Callable, Iterable

import torch

import opmux
from opmux.arch import known_arch
from opmux.declared.call import Call
from opmux.running.attempt import attempt_of
from opmux.tuning.measured import Machine, MeasuredRow

H200 = Machine("sm_90", "NVIDIA H200", 132, 1980.0, 4917.0)
H100 = Machine("sm_90", "NVIDIA H100 80GB HBM3", 132, 1980.0, 3352.0)
DTYPES = {"x": torch.bfloat16, "w": torch.bfloat16}
FLOPS_PER_US, BYTES_PER_US, LAUNCH_US = 7e8, 4e6, 3.0

Law = Callable[[int, int, int], float]
Point = tuple[int, int, int]


def smooth(tokens: int, n: int, k: int) -> float:
    """A launch, and the larger of moving the operands and computing at three quarters of the peak."""
    moved = 2 * (tokens * k + n * k + tokens * n) / BYTES_PER_US
    return LAUNCH_US + max(moved, 2 * tokens * n * k / (0.75 * FLOPS_PER_US))


def stepped(tokens: int, n: int, k: int) -> float:
    """Tiles of 128 x 256 in whole waves of 132."""
    tiles = -(-tokens // 128) * -(-n // 256)
    return LAUNCH_US + math.ceil(tiles / 132) * 132 * 2 * 128 * 256 * k / FLOPS_PER_US


def grid(step: int = 2) -> list[Point]:
    """Points of the models' widths and powers of two of tokens."""
    widths = (1024, 2048, 4096, 8192, 16384)
    return [(2**e, n, k) for e in range(0, 15, step) for n in widths for k in widths]


def drawn(seed: int, count: int) -> list[Point]:
    """Points between those of the grid."""
    rng = random.Random(seed)
    widths = (1536, 2560, 3072, 5120, 11008, 14336)
    return [(int(2 ** rng.uniform(0, 14)), rng.choice(widths), rng.choice(widths)) for _ in range(count)]


def row(
    point: Point, time_us: float, implementation: str = "one", machine: Machine = H200, **fields: object
) -> MeasuredRow:
    """A row at a point."""
    tokens, n, k = point
    values = {
        "op": "linear", "dtypes": DTYPES, "options": {}, "dims": {"tokens": tokens, "k": k, "n": n},
        "implementation": implementation, "machine": machine, "time_us": time_us, "spread": 0.01, "error": 0.1,
        "compared": (implementation,), "file": "h200.measured", "line": 7,
    }  # fmt: skip
    return MeasuredRow(**{**values, **fields})  # type: ignore[arg-type]


def rows(law: Law, points: Iterable[Point], implementation: str = "one", **fields: object) -> list[MeasuredRow]:
    """A row at each point, with the time that the law says."""
    return [row(point, law(*point), implementation, **fields) for point in points]  # type: ignore[arg-type]


def call(point: Point, dtype: torch.dtype = torch.bfloat16, arch: str = "sm_90") -> Call:
    """A call of linear with tensors on the meta device, as explain judges it for an arch."""
    tokens, n, k = point
    op = opmux.linear.op
    tensors = (
        torch.empty(tokens, k, dtype=dtype, device="meta"),
        torch.empty(n, k, dtype=dtype, device="meta"),
        None,
    )
    return attempt_of(op, op.state, *op.bind_arguments(tensors, {}), None, known_arch(arch)).call
