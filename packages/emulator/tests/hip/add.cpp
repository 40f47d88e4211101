#include <hip/hip_runtime.h>
#include <cstdio>
#include <vector>

__device__ int calls = 40;
__constant__ float scale[2];

__global__ void add(const float* x, const float* y, float* out, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  if (i < n) out[i] = scale[0] * tile[255 - (255 - threadIdx.x)] + scale[1] * y[i];
  if (i == 0) atomicAdd(&calls, 2);
}
#define CHECK(call)                                    \
  do {                                                 \
    hipError_t e = call;                               \
    if (e != hipSuccess) {                             \
      printf("%s: %s\n", #call, hipGetErrorString(e)); \
      return 1;                                        \
    }                                                  \
  } while (0)

int main(int count, char**) {
  int n = 1000, calls_now = 0;
  float factors[2] = {1, 2}, ms = -1;
  std::vector<float> host(n), out(n);
  for (int i = 0; i < n; i++) host[i] = i;
  float *x, *y, *z;
  hipStream_t stream;
  hipEvent_t start, stop;
  CHECK(hipStreamCreate(&stream));
  CHECK(hipEventCreate(&start));
  CHECK(hipEventCreate(&stop));
  CHECK(hipMalloc(&x, 4 * n));
  CHECK(hipMalloc(&y, 4 * n));
  CHECK(hipMalloc(&z, 4 * n));
  CHECK(hipMemcpyAsync(x, host.data(), 4 * n, hipMemcpyHostToDevice, stream));
  CHECK(hipMemcpyAsync(y, host.data(), 4 * n, hipMemcpyHostToDevice, stream));
  CHECK(hipMemcpyToSymbol(HIP_SYMBOL(scale), factors, sizeof factors));
  const size_t wrapping = ~size_t(0);
  if (hipMemcpyToSymbol(HIP_SYMBOL(scale), factors, wrapping, 4) != hipErrorInvalidValue) return 2;
  if (hipMemcpyFromSymbol(factors, HIP_SYMBOL(scale), 4, wrapping) != hipErrorInvalidValue) return 2;
  (void)hipGetLastError();
  CHECK(hipEventRecord(start, stream));
  add<<<4, 256, 0, stream>>>(x, y, z, count > 1 ? n + 24 : n);
  CHECK(hipGetLastError());
  CHECK(hipEventRecord(stop, stream));
  CHECK(hipStreamSynchronize(stream));
  CHECK(hipEventElapsedTime(&ms, start, stop));
  CHECK(hipMemcpy(out.data(), z, 4 * n, hipMemcpyDeviceToHost));
  CHECK(hipMemcpyFromSymbol(&calls_now, HIP_SYMBOL(calls), sizeof calls_now));
  for (int i = 0; i < n; i++)
    if (out[i] != 3 * i) {
      printf("out[%d] = %f\n", i, out[i]);
      return 1;
    }
  hipDeviceProp_t properties;
  CHECK(hipGetDeviceProperties(&properties, 0));
  printf("%s, %d threads to a warp, %d calls, time %s\n", properties.gcnArchName, properties.warpSize, calls_now,
         ms > 0 ? "passed" : "did not pass");
  CHECK(hipFree(x));
  CHECK(hipFree(y));
  CHECK(hipFree(z));
  CHECK(hipStreamDestroy(stream));
  return 0;
}
