"""Results of more than 2^31 elements on a Hopper GPU, exact: `python .../benchmarks/past_int32_on_gpu.py`.

Operands are small integers, and scales powers of two, so that each sum is exact in float32 and a result has one right
value. Every element is compared with torch's float32 product of the same rows. A result is poisoned with NaN before.
``--small`` computes small results by the reference, which takes no GPU. Ends with 1 if an element is wrong.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from torch import Tensor

import opmux

FP8 = torch.float8_e4m3fn
CHUNK = 4096
"""Rows that are compared at once."""
K = 512


def whole(*shape: int, device: str) -> Tensor:
    """Integers from -2 to 2 as float32."""
    return torch.randint(-2, 3, shape, device=device).float()


def powers(*shape: int, device: str) -> Tensor:
    """Scales of 1/2, 1 and 2."""
    return torch.randint(-1, 2, shape, device=device).float().exp2()


class Held:
    """A result that is compared rows by rows."""

    def __init__(self, name: str) -> None:
        self.name, self.wrong, self.count, self.began = name, 0, 0, time.perf_counter()

    def compare(self, found: Tensor, wanted: Tensor) -> None:
        """Count the elements that are not as wanted."""
        self.wrong += int((found != wanted.to(found.dtype)).sum())
        self.count += found.numel()

    def say(self) -> bool:
        """Print what came of it; returns whether all was right."""
        spent = time.perf_counter() - self.began
        print(f"{self.name}: {self.wrong} of {self.count:,} elements wrong ({spent:.1f} s)", flush=True)
        return not self.wrong


def in_chunks(rows: int) -> Iterator[slice]:
    """The rows that are compared at once."""
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))


def poisoned(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    """A result of NaN."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def linear(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """One product in bfloat16."""
    x, w = whole(m, K, device=device), whole(n, K, device=device)
    y = poisoned(m, n, dtype=torch.bfloat16, device=device)
    opmux.linear(x.bfloat16(), w.bfloat16(), backend=backend, out=y)
    for rows in in_chunks(m):
        held.compare(y[rows], x[rows] @ w.t())


def scaled_linear(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """One product of codes."""
    x, w, of_x, of_w = codes(m, n, device)
    y = poisoned(m, n, dtype=torch.bfloat16, device=device)
    opmux.scaled_linear(x.to(FP8), w.to(FP8), of_x, of_w, out_dtype=y.dtype, backend=backend, out=y)
    w = w * of_w.repeat_interleave(128, 1).repeat_interleave(128, 0)[:n]
    for rows in in_chunks(m):
        held.compare(y[rows], (x[rows] * of_x[rows].repeat_interleave(128, 1)) @ w.t())


def codes(m: int, n: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Operands with scales of 1x128 and of 128x128."""
    x, w = whole(m, K, device=device), whole(n, K, device=device)
    return x, w, powers(m, K // 128, device=device), powers(-(-n // 128), K // 128, device=device)


def scaled_linear_accumulate(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """One product of codes that is added to float32."""
    x, w, of_x, _ = codes(m, n, device)
    of_w = powers(n, K // 128, device=device)
    y = torch.ones(m, n, device=device)
    opmux.scaled_linear_accumulate(y, x.to(FP8), w.to(FP8), of_x, of_w, backend=backend)
    w = w * of_w.repeat_interleave(128, 1)
    for rows in in_chunks(m):
        held.compare(y[rows], 1 + (x[rows] * of_x[rows].repeat_interleave(128, 1)) @ w.t())


def offsets_of(m: int, groups: int, device: str) -> tuple[Tensor, list[slice]]:
    """Groups that begin anywhere, the first of them empty."""
    places = [0, 0, *(m * group // (groups - 1) - group % 3 for group in range(1, groups - 1)), m]
    return torch.tensor(places, dtype=torch.int32, device=device), [slice(*pair) for pair in pairwise(places)]


def grouped_linear(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """Ragged groups in bfloat16."""
    offsets, places = offsets_of(m, 9, device)
    x, w = whole(m, K, device=device), whole(len(places), n, K, device=device)
    y = poisoned(m, n, dtype=torch.bfloat16, device=device)
    opmux.grouped_linear(x.bfloat16(), w.bfloat16(), offsets, backend=backend, out=y)
    for rows, matrix in zip(places, w, strict=True):
        for part in in_chunks(rows.stop - rows.start):
            held.compare(y[rows][part], x[rows][part] @ matrix.t())


def scaled_masked_grouped_linear(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """Groups of codes, each with all of its rows but one."""
    groups = 32
    each = m // groups
    x, w = whole(groups, each, K, device=device), whole(groups, n, K, device=device)
    of_x = powers(groups, each, K // 128, device=device)
    of_w = powers(groups, -(-n // 128), K // 128, device=device)
    y = poisoned(groups, each, n, dtype=torch.bfloat16, device=device)
    counts = torch.full((groups,), each - 1, dtype=torch.int32, device=device)
    opmux.scaled_masked_grouped_linear(
        x.to(FP8), w.to(FP8), counts, of_x, of_w, expected_m=each, out_dtype=y.dtype, backend=backend, out=y
    )
    for group in range(groups):
        matrix = w[group] * of_w[group].repeat_interleave(128, 1).repeat_interleave(128, 0)[:n]
        rows = x[group] * of_x[group].repeat_interleave(128, 1)
        held.compare(y[group, : each - 1], rows[: each - 1] @ matrix.t())


def grouped_weight_grad(held: Held, backend: str, device: str, m: int, n: int) -> None:
    """Ragged k, whose results of all groups are one tensor."""
    offsets, places = offsets_of(2048, 65, device)
    columns = m // len(places)
    dy, x = whole(2048, columns, device=device), whole(2048, n, device=device)
    y = torch.ones(len(places), columns, n, device=device)
    opmux.grouped_weight_grad(y, dy.bfloat16(), x.bfloat16(), offsets, backend=backend)
    for rows, found in zip(places, y, strict=True):
        held.compare(found, 1 + dy[rows].t() @ x[rows])


CALLS: tuple[Callable[[Held, str, str, int, int], None], ...] = (
    linear,
    scaled_linear,
    scaled_linear_accumulate,
    grouped_linear,
    scaled_masked_grouped_linear,
    grouped_weight_grad,
)


def main() -> int:
    """Compare what the arguments name."""
    names = {call.__name__: call for call in CALLS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help=f"of {', '.join(names)}; all of them where none is named")
    parser.add_argument("--small", action="store_true", help="small results of the reference")
    given = parser.parse_args()
    backend, device, m, n = ("reference", "cpu", 1040, 136) if given.small else ("deepgemm", "cuda", 66560, 32904)
    good = True
    for name in given.ops or names:
        torch.manual_seed(0)
        held = Held(name)
        try:
            names[name](held, backend, device, m, n)
            good &= held.say()
        except Exception as error:  # the other ops are compared all the same
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            good = False
        if device == "cuda":
            torch.cuda.empty_cache()
    return not good


if __name__ == "__main__":
    sys.exit(main())
