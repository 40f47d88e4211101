// What CK's device code uses of HIP, for compilers that come without ROCm. Device code only: what is declared for the host
// is never called. A function that is declared and not defined here is an error of the linker where a kernel calls it.
#pragma once
#include <hip/hip_version.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(threads, threads)))

#define OPMUX_DEVICE static inline __device__ __attribute__((always_inline))

// Host: declared only.
enum hipError_t { hipSuccess = 0 };
typedef struct ihipStream_t* hipStream_t;
struct hipDeviceProp_t {
  char gcnArchName[256];
  int major, minor, warpSize, multiProcessorCount;
};
hipError_t hipGetDevice(int*);
hipError_t hipGetDeviceProperties(hipDeviceProp_t*, int);
typedef struct ihipEvent_t* hipEvent_t;
enum hipMemcpyKind { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2, hipMemcpyDeviceToDevice = 3 };
const char* hipGetErrorString(hipError_t);
hipError_t hipGetLastError();
hipError_t hipPeekAtLastError();
hipError_t hipEventCreate(hipEvent_t*);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipEventSynchronize(hipEvent_t);
hipError_t hipEventElapsedTime(float*, hipEvent_t, hipEvent_t);
hipError_t hipExtStreamGetCUMask(hipStream_t, std::uint32_t, std::uint32_t*);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipMalloc(void**, std::size_t);
hipError_t hipFree(void*);
hipError_t hipMemcpy(void*, const void*, std::size_t, hipMemcpyKind);
hipError_t hipMemset(void*, int, std::size_t);
template <class Kernel>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int*, Kernel, int, std::size_t);

struct dim3 {
  unsigned x, y, z;
  constexpr __host__ __device__ dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// What clang writes for the launches of CK's host code.
extern "C" hipError_t __hipPushCallConfiguration(dim3, dim3, std::size_t, hipStream_t);

#define OPMUX_VECTORS(name, type)                   \
  struct alignas(2 * sizeof(type)) name##2 {        \
    type x, y;                                      \
  };                                                \
  struct alignas(4 * sizeof(type)) name##4 {        \
    type x, y, z, w;                                \
  };
OPMUX_VECTORS(int, int)
OPMUX_VECTORS(uint, unsigned)
OPMUX_VECTORS(float, float)
OPMUX_DEVICE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

// threadIdx.x and its kin: objects that are read like numbers.
namespace opmux_hip {
template <unsigned (*Get)()>
struct Index {
  __device__ operator unsigned() const { return Get(); }
};
#define OPMUX_COORDINATE(name, builtin)                                            \
  OPMUX_DEVICE unsigned name##_x() { return __builtin_amdgcn_##builtin##_x(); }     \
  OPMUX_DEVICE unsigned name##_y() { return __builtin_amdgcn_##builtin##_y(); }     \
  OPMUX_DEVICE unsigned name##_z() { return __builtin_amdgcn_##builtin##_z(); }     \
  struct name {                                                                    \
    Index<name##_x> x;                                                             \
    Index<name##_y> y;                                                             \
    Index<name##_z> z;                                                             \
  };
OPMUX_COORDINATE(thread, workitem_id)
OPMUX_COORDINATE(block, workgroup_id)
OPMUX_COORDINATE(block_size, workgroup_size)
OPMUX_DEVICE unsigned blocks_x() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
OPMUX_DEVICE unsigned blocks_y() { return __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(); }
OPMUX_DEVICE unsigned blocks_z() { return __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z(); }
struct grid {
  Index<blocks_x> x;
  Index<blocks_y> y;
  Index<blocks_z> z;
};
}  // namespace opmux_hip
static constexpr __device__ opmux_hip::thread threadIdx{};
static constexpr __device__ opmux_hip::block blockIdx{};
static constexpr __device__ opmux_hip::block_size blockDim{};
static constexpr __device__ opmux_hip::grid gridDim{};

OPMUX_DEVICE unsigned __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
OPMUX_DEVICE int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
OPMUX_DEVICE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<std::uint64_t>(a) * b >> 32; }
OPMUX_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Floats. The names in namespace std are those that a C++ library may lack.
#define OPMUX_FUNCTION(name)                                          \
  OPMUX_DEVICE float name##f(float x) { return __builtin_##name##f(x); } \
  namespace std {                                                     \
  using ::name##f;                                                    \
  }
OPMUX_FUNCTION(acos)
OPMUX_FUNCTION(acosh)
OPMUX_FUNCTION(asin)
OPMUX_FUNCTION(asinh)
OPMUX_FUNCTION(atan)
OPMUX_FUNCTION(atanh)
OPMUX_FUNCTION(ceil)
OPMUX_FUNCTION(cos)
OPMUX_FUNCTION(cosh)
OPMUX_FUNCTION(exp)
OPMUX_FUNCTION(exp2)
OPMUX_FUNCTION(expm1)
OPMUX_FUNCTION(floor)
OPMUX_FUNCTION(log)
OPMUX_FUNCTION(sin)
OPMUX_FUNCTION(sinh)
OPMUX_FUNCTION(sqrt)
OPMUX_FUNCTION(tan)
OPMUX_FUNCTION(tanh)
OPMUX_DEVICE float powf(float x, float y) { return __builtin_powf(x, y); }
namespace std {
using ::powf;
}
OPMUX_DEVICE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
OPMUX_DEVICE float __logf(float x) { return __builtin_logf(x); }
OPMUX_DEVICE float __expf(float x) { return __builtin_expf(x); }
OPMUX_DEVICE double sqrt(double x) { return __builtin_sqrt(x); }
OPMUX_DEVICE bool isnan(float x) { return __builtin_isnan(x); }
OPMUX_DEVICE bool isnan(double x) { return __builtin_isnan(x); }
OPMUX_DEVICE float __ocml_exp_f32(float x) { return __builtin_expf(x); }
OPMUX_DEVICE float __ocml_native_recip_f32(float x) { return __builtin_amdgcn_rcpf(x); }
extern "C" {
__device__ _Float16 __ocml_ceil_f16(_Float16);
__device__ _Float16 __ocml_exp_f16(_Float16);
__device__ _Float16 __ocml_floor_f16(_Float16);
__device__ _Float16 __ocml_log_f16(_Float16);
__device__ _Float16 __ocml_sin_f16(_Float16);
}

// Atomics, at the scope of the device.
template <class T, class V>
OPMUX_DEVICE T atomicAdd(T* at, V value) {
  return __hip_atomic_fetch_add(at, static_cast<T>(value), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T, class V>
OPMUX_DEVICE T atomicMax(T* at, V value) {
  return __hip_atomic_fetch_max(at, static_cast<T>(value), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T>
OPMUX_DEVICE T atomicCAS(T* at, T expected, T value) {
  __hip_atomic_compare_exchange_strong(at, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

// CK's kernels print nothing unless they are debugged.
template <class... Values>
OPMUX_DEVICE int printf(const char*, Values...) {
  return 0;
}
