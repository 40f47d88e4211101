"""Kernels that NVRTC compiles, run on a GPU: ``python packages/jit/tests/gpu/on_gpu.py`` prints "all equal".

A vector addition, every kind of scalar, a copy through a tensor map, a cluster, and two kernels of which the second may
start early. `.ci/gpu` runs it; without a GPU it fails.
"""

import sys
from collections.abc import Callable

import torch

from opmux_jit import Source, load, tensor_map
from opmux_jit.launching import device

ADD = """
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
SCALARS = """
extern "C" __global__ void scalars(double* out, signed char b, short h, int i, long long q, unsigned char B,
                                   unsigned short H, unsigned I, unsigned long long Q, bool t, unsigned short e,
                                   unsigned short E, float f, double d, const void* p) {
  const double found[] = {(double)b, (double)h, (double)i, (double)q, (double)B, (double)H, (double)I, (double)Q,
                          (double)t, (double)e, (double)E, f, d, (double)(p == nullptr)};
  for (int k = 0; k < 14; ++k) out[k] = found[k];
}
"""
COPY = """
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void copy(const __grid_constant__ TensorMap map, float* out, int x, int y) {
  __shared__ alignas(128) float tile[8][32];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier), to = (unsigned)__cvta_generic_to_shared(&tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(1024) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(bar) : "memory");
  }
  __syncthreads();
  asm volatile("{\\n.reg .pred done;\\nwait:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n"
               "@!done bra wait;\\n}" ::"r"(bar) : "memory");
  for (int i = threadIdx.x; i < 256; i += blockDim.x) out[i] = (&tile[0][0])[i];
}
"""
CLUSTER = """
extern "C" __global__ void cluster(int* out) {
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  out[blockIdx.x] = rank + 100 * size;
}
"""
DEPENDENT = """
extern "C" __global__ void first(int* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < 20000; ++i) __nanosleep(50);
  *x = 7;
}
extern "C" __global__ void second(const int* x, int* y) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  *y = *x + 1;
}
"""


def arch() -> str:
    """What this GPU's kernels are compiled for."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def addition() -> bool:
    """c = a + b, on a stream of its own too."""
    kernel = load(Source("add", ADD, arch()), "add", "pppi", block=256)
    a, b = torch.randn(2, 10_001, device="cuda")
    c, other = torch.empty_like(a), torch.empty_like(a)
    kernel((40,), a, b, c, a.numel())
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        kernel((40,), a, b, other, a.numel())
        torch.cuda.current_stream().synchronize()
    attribute = kernel.on(0) is kernel.on(0)
    return torch.equal(c, a + b) and torch.equal(other, a + b) and attribute


def captured() -> bool:
    """A launch in a CUDA graph."""
    kernel = load(Source("add", ADD, arch()), "add", "pppi", block=256)
    a, b = torch.randn(2, 300, device="cuda")
    c = torch.zeros_like(a)
    kernel((2,), a, b, c, 300)
    c.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel((2,), a, b, c, 300)
    before = c.count_nonzero().item()
    graph.replay()
    return before == 0 and torch.equal(c, a + b)


def scalars() -> bool:
    """Every kind of argument that is no tensor."""
    kernel = load(Source("scalars", SCALARS, arch()), "scalars", "pbhiqBHIQ?eEfdp", block=1)
    out = torch.zeros(14, dtype=torch.float64, device="cuda")
    given = (-128, -32768, -(2**31), -(2**52), 255, 65535, 2**32 - 1, 2**53, True, 1.5, 1.5, 0.1, 0.1, None)
    kernel((1,), out, *given)
    half, brain = (int(torch.tensor(1.5, dtype=d).view(torch.int16)) for d in (torch.float16, torch.bfloat16))
    single = float(torch.tensor(0.1, dtype=torch.float32))
    return out.tolist() == [*map(float, given[:9]), half, brain, single, 0.1, 1.0]


def through_a_tensor_map() -> bool:
    """TMA copies a box out of a matrix."""
    kernel = load(Source("copy", COPY, arch()), "copy", "mpii", block=32)
    matrix, out = torch.randn(64, 128, device="cuda"), torch.zeros(8, 32, device="cuda")
    kernel((1,), tensor_map(matrix, (8, 32)), out, 64, 16)
    return torch.equal(out, matrix[16:24, 64:96])


def in_clusters() -> bool:
    """Clusters of 2 and, where it is asked for, of 16 blocks."""
    found = []
    for size in (2, 16):
        kernel = load(Source("cluster", CLUSTER, arch()), "cluster", "p", block=32, cluster=size)
        out = torch.zeros(32, dtype=torch.int32, device="cuda")
        kernel((32,), out)
        found.append(out.tolist() == [i % size + 100 * size for i in range(32)])
    return all(found)


def dependent() -> bool:
    """The second kernel starts early and waits for the first."""
    source = Source("dependent", DEPENDENT, arch())
    first, second = (
        load(source, n, s, block=1, dependent=n == "second") for n, s in (("first", "p"), ("second", "pp"))
    )
    x, y = torch.zeros(2, dtype=torch.int32, device="cuda").unbind()
    first((1,), x)
    second((1,), x, y)
    return y.item() == 8


CHECKS: tuple[Callable[[], bool], ...] = (addition, captured, scalars, through_a_tensor_map, in_clusters, dependent)

if __name__ == "__main__":
    failed = []
    for check in CHECKS:
        try:
            good, reason = check(), "another result"
        except Exception as error:  # the other checks say more
            good, reason = False, f"{type(error).__name__}: {error}"
        if not good:
            failed.append(f"{check.__name__}: {reason}")
    sys.stdout.write("\n".join(failed or ["all equal"]) + f"\n(driver for {device(0).driver_version})\n")
    sys.exit(bool(failed))
