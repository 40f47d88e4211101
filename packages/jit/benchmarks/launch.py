"""Host time of a launch, in microseconds: `python packages/jit/benchmarks/launch.py` on a machine with an NVIDIA GPU.

The kernel adds two vectors of few elements, so the GPU is never waited for long; rounds are interleaved, and the median
of the rounds is printed. ``cuLaunchKernel`` is the cost of each launch in a list of 100, made in one call: little more
than the driver's own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from opmux_jit import Source, load
from opmux_jit.cache.layers import machine_code
from opmux_jit.launching import devices
from opmux_jit.launching.modules import Module
from opmux_jit.native.library import launcher

TEXT = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
SIZE, BATCH = 256, 100


def triton_launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], object]:
    """The same kernel through Triton's own launch."""
    import triton
    import triton.language as tl

    @triton.jit
    def add(a, b, c, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)

    return lambda: add[(1,)](a, b, c, SIZE, BLOCK=SIZE)


def ways() -> dict[str, tuple[Callable[[], object], int]]:
    """Name -> a function, and the launches that it makes."""
    a, b = (torch.randn(SIZE, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    major, minor = torch.cuda.get_device_capability()
    source = Source("add", TEXT, f"sm_{major}{minor}")
    kernel = load(source, "add", "pppi", block=SIZE)
    kernel((1,), a, b, c, SIZE)
    torch.cuda.synchronize()
    if not torch.equal(c, a + b):
        raise SystemExit("the kernel's result is wrong")
    on, stream = kernel.on(0), devices.current_stream
    native, device = launcher(), devices.device(0)
    module = Module(machine_code(source), device)
    shape = native.shape(
        device.driver, 0, module.function("add").handle, "add", "pppi", (SIZE, 1, 1), 0, (1, 1, 1), False, False,
        False, module,
    )  # fmt: skip
    step = (shape, (1, 1, 1), (..., ..., ..., SIZE), [(0, 0, 0), (1, 1, 0), (2, 2, 0)], [])
    one = native.launches([step], 3, stream, 0)
    many = native.launches([step] * BATCH, 3, stream, 0)
    x, y, z = a.data_ptr(), b.data_ptr(), c.data_ptr()
    return {
        "cuLaunchKernel": (lambda: many(a, b, c), BATCH),
        "launch, addresses": (lambda: on(1, 1, 1, 0, x, y, z, SIZE), 1),
        "launch, tensors": (lambda: on(1, 1, 1, stream(0), a, b, c, SIZE), 1),
        "list of one": (lambda: one(a, b, c), 1),
        "kernel(grid, ...)": (lambda: kernel((1,), a, b, c, SIZE), 1),
        "Triton's own": (triton_launch(a, b, c), 1),
        "torch.empty_like": (lambda: torch.empty_like(a), 1),
    }


def measure(rounds: int) -> dict[str, float]:
    """Microseconds a launch, by way."""
    found = ways()
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 2):
        for name, (call, launches) in found.items():
            count = max(1, 500 // launches)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                call()
            spent = time.perf_counter() - started
            if number > 1:
                times[name].append(spent / count / launches * 1e6)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=str)
    arguments = parser.parse_args()
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "us": measure(arguments.rounds)}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
