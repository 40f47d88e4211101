#include <hip/hip_runtime.h>

__global__ void square(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x]; }
extern "C" int run(const float* x, float* out, int n) {
  square<<<1, n>>>(x, out);
  return hipGetLastError();
}
