"""How many wave-instructions a second one core executes: a Triton GEMM of many waves, with every rule on.

Run: ``python packages/emulator/benchmarks/gemm.py``; ``benchmarks/figures.md`` has what was measured.
"""

import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
warnings.simplefilter("ignore")

import triton_kernels  # noqa: E402
from compiling import array, compile_kernel, program_of  # noqa: E402

from opmux_emulator import launch  # noqa: E402

M, N, K = 2048, 1024, 1024
SIGNATURE = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}


def main() -> None:
    """Print a line per arch."""
    a, b = torch.randn(M, K).half(), torch.randn(N, K).half()
    for arch in ("gfx90a", "gfx942", "gfx950"):
        compiled = compile_kernel(
            triton_kernels.gemm, arch, SIGNATURE, {"BM": 128, "BN": 128, "BK": 64}, num_warps=4, num_stages=2
        )
        program, out = program_of(compiled), torch.zeros(M, N)
        arguments = [array(a), array(b), out.numpy(), M, N, K]
        rates = []
        for _ in range(3):
            started = time.process_time()
            report = launch(
                program, "gemm", (M // 128, N // 128), (256,), arguments, dynamic_lds=compiled.metadata.shared
            )
            rates.append(report.counts.total / (time.process_time() - started) / 1e6)
        share = 100 * report.counts.mfma_share
        print(
            f"{arch}: {report.counts.total} wave-instructions, {share:.0f} % matrix; {max(rates):.2f} million a second"
        )


if __name__ == "__main__":
    main()
