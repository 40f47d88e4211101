"""Sources that tests compile, and a compiler that needs no compiling."""

from dataclasses import dataclass
from pathlib import Path

from opmux_jit.compilers import Source

ADD = """extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""


def add(name: str = "add", arch: str = "sm_90", **more: object) -> Source:
    return Source(name, ADD, arch, **more)  # type: ignore[arg-type]


@dataclass
class Counting:
    """Stands for a compiler: returns what says which source it got, and counts."""

    name: str = "nvrtc"
    version: str = "13.5"
    path: Path = Path("/lib/libnvrtc.so.13")
    count: int = 0
    library: str = ""

    def refusal(self, source: Source) -> str | None:
        return None

    def compile(self, source: Source, folder: Path) -> bytes:
        self.count += 1
        return f"{source.name} {source.arch} {source.text}".encode()
