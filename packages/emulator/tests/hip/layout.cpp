#include <hip/hip_runtime_api.h>
#include <cstdio>
#define SHOW(field) printf("%s %lld\n", #field, (long long)p.field)
int main() {
  static_assert(sizeof(hipDeviceProp_t) == 1472);
  static_assert(sizeof(hipFuncAttributes) == 56 && sizeof(hipPointerAttribute_t) == 32 &&
                sizeof(HIP_LAUNCH_CONFIG) == 56 && sizeof(hipLaunchConfig_t) == 56);
  static_assert(HIP_POINTER_ATTRIBUTE_DEVICE_POINTER == 3 && HIP_POINTER_ATTRIBUTE_RANGE_SIZE == 12 &&
                HIP_FUNC_ATTRIBUTE_NUM_REGS == 4);
  static_assert(hipErrorNoBinaryForGpu == 209 && hipErrorIllegalAddress == 700 && hipErrorLaunchFailure == 719 &&
                hipErrorInvalidHandle == 400);
  hipDeviceProp_t p;
  if (hipGetDeviceProperties(&p, 0) != hipSuccess) return 1;
  printf("%s %s\n", p.name, p.gcnArchName);
  SHOW(sharedMemPerBlock);
  SHOW(warpSize);
  SHOW(maxThreadsPerBlock);
  SHOW(maxThreadsDim[2]);
  SHOW(major);
  SHOW(minor);
  SHOW(multiProcessorCount);
  SHOW(maxThreadsPerMultiProcessor);
  SHOW(sharedMemPerMultiprocessor);
  SHOW(regsPerMultiprocessor);
  SHOW(cooperativeLaunch);
  SHOW(hostRegisterSupported);
  SHOW(maxSharedMemoryPerMultiProcessor);
  SHOW(arch.hasDoubles);
  SHOW(arch.hasDynamicParallelism);
  SHOW(memoryBusWidth);
  SHOW(l2CacheSize);
  SHOW(unifiedAddressing);
  hipDeviceAttribute_t asked[] = {hipDeviceAttributeWarpSize,
                                  hipDeviceAttributeMultiprocessorCount,
                                  hipDeviceAttributeMaxSharedMemoryPerBlock,
                                  hipDeviceAttributeMaxThreadsPerBlock,
                                  hipDeviceAttributeComputeCapabilityMinor,
                                  hipDeviceAttributePhysicalMultiProcessorCount,
                                  hipDeviceAttributeNumberOfXccs,
                                  hipDeviceAttributeMaxAvailableVgprsPerThread,
                                  hipDeviceAttributeHostRegisterSupported};
  for (auto attribute : asked) {
    int value = -1;
    if (hipDeviceGetAttribute(&value, attribute, 0) != hipSuccess) return 1;
    printf("%d ", value);
  }
}
