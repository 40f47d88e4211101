// The driver's library, opened at run time: what this extension calls of libcuda.so.1 or libamdhip64.so.
//
// No header of a toolkit is used. Types and constants are those of the CUDA driver API and of HIP's module API, whose
// binary interfaces are stable.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace opmux {

enum class Vendor { cuda, hip };

// A call of the driver failed.
struct DriverError : std::runtime_error {
  int code;
  DriverError(int code, const std::string& text) : std::runtime_error(text), code(code) {}
};

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  std::uint32_t id;
  std::uint32_t pad;
  union {
    std::uint32_t words[16];
    struct {
      std::uint32_t x, y, z;
    } cluster;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);

enum : std::uint32_t {
  attribute_cooperative = 2,
  attribute_cluster = 4,
  attribute_cluster_policy = 5,
  attribute_dependent = 6,  // programmatic stream serialization
};
enum : std::uint32_t { cluster_policy_spread = 1 };

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

constexpr std::size_t map_size = 128, map_alignment = 128;

class Driver {
 public:
  // Opens and initialises the library. Throws DriverError.
  Driver(Vendor vendor, const std::string& library);

  const Vendor vendor;
  const std::string library;

  int version() const;
  // The primary context of a device, retained for the life of the process; null for HIP, which has devices only.
  void* context(int device);
  // Throws DriverError if a call returned an error.
  void check(int code, const char* call) const;
  std::string describe(int code) const;

  int (*get_current)(void** context) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
  int (*get_device)(int* device) = nullptr;  // HIP
  int (*set_device)(int device) = nullptr;   // HIP
  int (*module_load)(void** module, const void* image) = nullptr;
  int (*module_unload)(void* module) = nullptr;
  int (*module_function)(void** function, void* module, const char* name) = nullptr;
  int (*module_global)(void** address, std::size_t* size, void* module, const char* name) = nullptr;
  int (*function_get)(int* value, int attribute, void* function) = nullptr;
  int (*function_set)(void* function, int attribute, int value) = nullptr;  // CUDA
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                void** arguments, void** extra) = nullptr;
  int (*launch_cooperative)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void* stream, void** arguments) = nullptr;                                    // HIP
  int (*launch_extended)(const LaunchConfig*, void* function, void** arguments, void** extra) = nullptr;  // CUDA
  int (*encode_tiled)(void* map, int dtype, std::uint32_t rank, void* address, const std::uint64_t* sizes,
                      const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides,
                      int interleave, int swizzle, int promotion, int fill) = nullptr;  // CUDA 12 and newer

 private:
  void* symbol(const char* name, bool required = true) const;
  void* handle_ = nullptr;
  int (*get_version_)(int*) = nullptr;
  int (*device_get_)(int* device, int ordinal) = nullptr;
  int (*context_retain_)(void** context, int device) = nullptr;
  int (*cuda_error_name_)(int, const char**) = nullptr;
  int (*cuda_error_text_)(int, const char**) = nullptr;
  const char* (*hip_error_name_)(int) = nullptr;
  const char* (*hip_error_text_)(int) = nullptr;
  std::vector<void*> contexts_;
};

// Makes a device current for the life of this object, if it is not, and then the former one again.
class Current {
 public:
  Current(Driver& driver, void* context, int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  int code = 0;  // of the call that failed, if one did

 private:
  Driver& driver_;
  bool pushed_ = false;
  int before_ = -1;
};

}  // namespace opmux
