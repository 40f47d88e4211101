// Devices: one, numbered 0, of the arch that is played; its properties and attributes.
#include "runtime.h"
#include <cstring>
#include <dlfcn.h>

namespace {
Error check_device(const char* call, int id) {
  if (settings().arch.empty()) return fail(hipErrorNoDevice, "%s: OPMUX_HIP names no arch that can be played", call);
  return id == 0 ? hipSuccess
                 : fail(hipErrorInvalidDevice, "%s: `device`: the emulator has device 0 only, got %d", call, id);
}
// Fields by their offset in the two layouts that are in use: HIP 6 and newer ("R0600"), and HIP 5 ("R0000"); -1 where
// there is none.
struct Field {
  int recent, old;
  u64 value;
  u8 bytes;
};
void fill(char* out, size_t size, size_t name_at, bool recent) {
  const Device& d = device();
  memset(out, 0, size);
  strncpy(out, d.name, 255);
  strncpy(out + name_at, d.target, 255);
  const u64 atomics = 0xffff;  // of hipDeviceArch_t: all that these archs have; no dynamic parallelism
  const Field fields[] = {
      {288, 256, d.memory, 8},
      {296, 264, d.lds, 8},
      {304, 272, 65536, 4},
      {308, 276, 64, 4},
      {312, 712, 0x7fffffff, 8},
      {320, 280, 1024, 4},
      {324, 284, 1024, 4},
      {328, 288, 1024, 4},
      {332, 292, 1024, 4},
      {336, 296, 0x7fffffff, 4},
      {340, 300, 65536, 4},
      {344, 304, 65536, 4},
      {348, 308, (u64)d.clock_khz, 4},
      {352, 320, 0x7fffffff, 8},
      {360, 328, 9, 4},
      {364, 332, (u64)d.minor, 4},
      {368, 720, 256, 8},
      {388, 336, (u64)d.units, 4},
      {400, 388, 1, 4},
      {576, 360, 1, 4},
      {604, -1, 1, 4},
      {608, 312, (u64)d.memory_clock_khz, 4},
      {612, 316, (u64)d.bus_bits, 4},
      {616, 340, (u64)d.l2, 4},
      {624, 344, 2048, 4},
      {640, -1, d.lds, 8},
      {648, -1, 131072, 4},
      {652, 772, 1, 4},
      {672, 784, settings().pageable, 4},
      {676, 780, 1, 4},
      {684, -1, 1, 4},
      {688, 656, 1, 4},
      {696, -1, d.lds, 8},
      {712, -1, 32, 4},
      {728, -1, 1, 4},
      {1416, 376, d.lds, 8},
      {1424, 352, 100000, 4},
      {1428, 356, atomics, 4},
  };
  for (const Field& f : fields) {
    int at = recent ? f.recent : f.old;
    if (at >= 0) memcpy(out + at, &f.value, f.bytes);
  }
}
struct Value {
  int attribute;
  u64 value;
};
bool attribute_of(int attribute, int* out) {
  const Device& d = device();
  const Value values[] = {
      {3, 1},
      {4, 1},
      {5, (u64)d.clock_khz},
      {8, 1},
      {9, 1},
      {10, 1},
      {19, (u64)d.l2},
      {23, 9},
      {24, 1},
      {25, 32},
      {26, 1024},
      {27, 1024},
      {28, 1024},
      {29, 0x7fffffff},
      {30, 65536},
      {31, 65536},
      {55, 1024},
      {56, 1024},
      {57, 2048},
      {58, 0x7fffffff},
      {59, (u64)d.bus_bits},
      {60, (u64)d.memory_clock_khz},
      {61, (u64)d.minor},
      {63, (u64)d.units},
      {65, settings().pageable},
      {71, 65536},
      {72, 131072},
      {74, d.lds},
      {75, d.lds},
      {76, d.lds},
      {81, 256},
      {83, 0x7fffffff},
      {85, 1},
      {87, 64},
      {88, 0},
      {89, 0},
      {90, 1},
      {10000, 100000},
      {10002, d.lds},
      {10011, 0},
      {10015, (u64)d.units},
      {10016, 1},
      {10017, 100000},
      {10018, (u64)d.xccs},
      {10019, 512},
  };
  for (const Value& v : values)
    if (v.attribute == attribute) {
      *out = (int)v.value;
      return true;
    }
  *out = 0;
  return attribute >= 0 &&
         (attribute < 96 || (attribute >= 10000 && attribute < 10024));  // what these devices do not have
}
}  // namespace

EXPORT Error hipInit(unsigned) { return settings().arch.empty() ? check_device("hipInit", 0) : hipSuccess; }
EXPORT Error hipDriverGetVersion(int* out) {
  *out = VERSION;
  return hipSuccess;
}
EXPORT Error hipRuntimeGetVersion(int* out) {
  *out = VERSION;
  return hipSuccess;
}
EXPORT Error hipGetDeviceCount(int* out) {
  Guard lock(everything);
  *out = settings().arch.empty() ? 0 : 1;
  return *out ? hipSuccess : check_device("hipGetDeviceCount", 0);
}
EXPORT Error hipGetDevice(int* out) {
  Guard lock(everything);
  *out = 0;
  return check_device("hipGetDevice", 0);
}
EXPORT Error hipSetDevice(int id) {
  Guard lock(everything);
  return check_device("hipSetDevice", id);
}
EXPORT Error hipSetValidDevices(int*, int) { return hipSuccess; }
EXPORT Error hipDeviceGet(int* out, int id) {
  Guard lock(everything);
  *out = id;
  return check_device("hipDeviceGet", id);
}
EXPORT Error hipDeviceGetName(char* out, int size, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipDeviceGetName", id)) return e;
  if (size > 0) {
    strncpy(out, device().name, size);
    out[size - 1] = 0;
  }
  return hipSuccess;
}
EXPORT Error hipDeviceTotalMem(size_t* out, int id) {
  Guard lock(everything);
  *out = device().memory;
  return check_device("hipDeviceTotalMem", id);
}
EXPORT Error hipDeviceComputeCapability(int* major, int* minor, int id) {
  Guard lock(everything);
  *major = 9;
  *minor = device().minor;
  return check_device("hipDeviceComputeCapability", id);
}
EXPORT Error hipDeviceGetPCIBusId(char* out, int size, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipDeviceGetPCIBusId", id)) return e;
  strncpy(out, "0000:00:00.0", size);
  return hipSuccess;
}
EXPORT Error hipDeviceGetUuid(char* out, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipDeviceGetUuid", id)) return e;
  memset(out, 0, 16);
  strncpy(out, device().arch, 16);
  return hipSuccess;
}
EXPORT Error hipDeviceSynchronize() {
  Guard lock(everything);
  return take_pending();
}
EXPORT Error hipCtxSynchronize() { return hipDeviceSynchronize(); }
EXPORT Error hipDeviceReset() {
  Guard lock(everything);
  (void)take_pending();
  return hipSuccess;
}
EXPORT Error hipDeviceSetCacheConfig(int) { return hipSuccess; }
EXPORT Error hipDeviceGetCacheConfig(int* out) {
  *out = 0;
  return hipSuccess;
}
EXPORT Error hipDeviceSetSharedMemConfig(int) { return hipSuccess; }
EXPORT Error hipDeviceGetSharedMemConfig(int* out) {
  *out = 0;
  return hipSuccess;
}
EXPORT Error hipSetDeviceFlags(unsigned) { return hipSuccess; }
EXPORT Error hipGetDeviceFlags(unsigned* out) {
  *out = 0;
  return hipSuccess;
}
EXPORT Error hipDeviceCanAccessPeer(int* out, int, int) {
  *out = 0;
  return hipSuccess;
}
EXPORT Error hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -1;
  return hipSuccess;
}
EXPORT Error hipDeviceGetLimit(size_t* out, int) {
  *out = 0;
  return hipSuccess;
}
EXPORT Error hipGetDevicePropertiesR0600(char* out, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipGetDeviceProperties", id)) return e;
  fill(out, 1472, 1160, true);
  return hipSuccess;
}
EXPORT Error hipGetDevicePropertiesR0000(char* out, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipGetDeviceProperties", id)) return e;
  fill(out, 792, 396, false);
  return hipSuccess;
}
EXPORT Error hipGetDeviceProperties(char* out, int id) {
  return hipGetDevicePropertiesR0000(out, id);
}  // the symbol that programs built with HIP 5 ask for
EXPORT Error hipDeviceGetAttribute(int* out, int attribute, int id) {
  Guard lock(everything);
  if (Error e = check_device("hipDeviceGetAttribute", id)) return e;
  return attribute_of(attribute, out)
             ? hipSuccess
             : fail(hipErrorInvalidValue, "hipDeviceGetAttribute: attribute %d is not known", attribute);
}
EXPORT Error hipDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return hipSuccess;
}
EXPORT Error hipDevicePrimaryCtxRetain(void** out, int) {
  *out = (void*)1;
  return hipSuccess;
}
EXPORT Error hipDevicePrimaryCtxRelease(int) { return hipSuccess; }
EXPORT Error hipCtxGetCurrent(void** out) {
  *out = (void*)1;
  return hipSuccess;
}
EXPORT Error hipCtxSetCurrent(void*) { return hipSuccess; }
EXPORT Error hipCtxGetDevice(int* out) {
  *out = 0;
  return hipSuccess;
}

// Functions by name. The names of HIP 6 for what changed its layout stand for the recent layout, as its headers have
// it.
EXPORT Error hipGetProcAddress(const char* name, void** out, int version, u64, int* status) {
  static void* own = [] {
    Dl_info info;
    dladdr((void*)&hipInit, &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  bool recent = version >= 60000000 && !strcmp(name, "hipGetDeviceProperties");
  *out = own ? dlsym(own, recent ? "hipGetDevicePropertiesR0600" : name) : nullptr;
  if (status) *status = *out ? 0 : 1;
  return *out ? hipSuccess : fail(hipErrorInvalidValue, "hipGetProcAddress: the emulator has no %s", name);
}
