// What of HIP's binary interface the library speaks: values and layouts as in HIP 7 (hip_runtime_api.h,
// driver_types.h).
#pragma once
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

enum Error : int {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidSymbol = 13,
  hipErrorMissingConfiguration = 52,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorNoBinaryForGpu = 209,
  hipErrorFileNotFound = 301,
  hipErrorInvalidHandle = 400,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchTimeOut = 702,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipErrorHostMemoryNotRegistered = 713,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
};
enum MemoryType : int { UNREGISTERED = 0, HOST = 1, DEVICE = 2, MANAGED = 3 };
enum CopyKind : int {
  HOST_TO_HOST = 0,
  HOST_TO_DEVICE = 1,
  DEVICE_TO_HOST = 2,
  DEVICE_TO_DEVICE = 3,
  BY_ADDRESS = 4,
  DEVICE_TO_DEVICE_NO_CU = 1024
};
enum PointerAttribute : int {
  POINTER_CONTEXT = 1,
  POINTER_MEMORY_TYPE = 2,
  POINTER_DEVICE = 3,
  POINTER_HOST = 4,
  POINTER_BUFFER_ID = 7,
  POINTER_IS_MANAGED = 8,
  POINTER_ORDINAL = 9,
  POINTER_RANGE_START = 11,
  POINTER_RANGE_SIZE = 12,
  POINTER_MAPPED = 13,
};
enum FunctionAttribute : int {
  MAX_THREADS = 0,
  SHARED_SIZE = 1,
  CONST_SIZE = 2,
  LOCAL_SIZE = 3,
  NUM_REGS = 4,
  BINARY_VERSION = 6,
  MAX_DYNAMIC_SHARED = 8,
  PREFERRED_CARVEOUT = 9
};

struct Dim3 {
  uint32_t x, y, z;
};
struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  int is_managed;
  unsigned flags;
};
struct FunctionAttributes {
  int binary_version, cache_mode;
  size_t const_size, local_size;
  int max_dynamic_shared, max_threads, registers, carveout, ptx_version;
  size_t shared_size;
};
struct DriverLaunchConfig {
  uint32_t grid[3], block[3], shared;
  void *stream, *attributes;
  uint32_t attribute_count;
};
struct LaunchConfig {
  Dim3 grid, block;
  size_t shared;
  void *stream, *attributes;
  uint32_t attribute_count;
};
struct FatBinary {
  uint32_t magic, version;
  const void* data;
  void* unused;
};  // what clang hands to __hipRegisterFatBinary
constexpr uint32_t FAT_BINARY_MAGIC = 0x48495046;  // "HIPF"
constexpr int VERSION = 70100000;                  // 7.1.0: the interface that is followed
