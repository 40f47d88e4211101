#include "driver.h"

#include <dlfcn.h>

namespace opmux {

namespace {

template <class Function>
void bind(Function& function, void* symbol) {
  function = reinterpret_cast<Function>(symbol);
}

}  // namespace

Driver::Driver(Vendor vendor, const std::string& library) : vendor(vendor), library(library) {
  handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) {
    const char* said = dlerror();
    throw DriverError(-1, library + " cannot be opened: " + (said ? said : "unknown"));
  }
  int (*init)(unsigned) = nullptr;
  if (vendor == Vendor::cuda) {
    bind(init, symbol("cuInit"));
    bind(get_version_, symbol("cuDriverGetVersion"));
    bind(cuda_error_name_, symbol("cuGetErrorName"));
    bind(cuda_error_text_, symbol("cuGetErrorString"));
    bind(device_get_, symbol("cuDeviceGet"));
    bind(context_retain_, symbol("cuDevicePrimaryCtxRetain"));
    bind(get_current, symbol("cuCtxGetCurrent"));
    bind(push, symbol("cuCtxPushCurrent_v2"));
    bind(pop, symbol("cuCtxPopCurrent_v2"));
    bind(module_load, symbol("cuModuleLoadData"));
    bind(module_unload, symbol("cuModuleUnload"));
    bind(module_function, symbol("cuModuleGetFunction"));
    bind(module_global, symbol("cuModuleGetGlobal_v2"));
    bind(function_get, symbol("cuFuncGetAttribute"));
    bind(function_set, symbol("cuFuncSetAttribute"));
    bind(launch, symbol("cuLaunchKernel"));
    bind(launch_extended, symbol("cuLaunchKernelEx", false));
    bind(encode_tiled, symbol("cuTensorMapEncodeTiled", false));
  } else {
    bind(init, symbol("hipInit"));
    bind(get_version_, symbol("hipDriverGetVersion"));
    bind(hip_error_name_, symbol("hipGetErrorName"));
    bind(hip_error_text_, symbol("hipGetErrorString"));
    bind(get_device, symbol("hipGetDevice"));
    bind(set_device, symbol("hipSetDevice"));
    bind(module_load, symbol("hipModuleLoadData"));
    bind(module_unload, symbol("hipModuleUnload"));
    bind(module_function, symbol("hipModuleGetFunction"));
    bind(module_global, symbol("hipModuleGetGlobal"));
    bind(function_get, symbol("hipFuncGetAttribute"));
    bind(launch, symbol("hipModuleLaunchKernel"));
    bind(launch_cooperative, symbol("hipModuleLaunchCooperativeKernel"));
  }
  check(init(0), vendor == Vendor::cuda ? "cuInit" : "hipInit");
}

void* Driver::symbol(const char* name, bool required) const {
  void* found = dlsym(handle_, name);
  if (!found && required) {
    throw DriverError(-1, library + " has no " + name + ": the driver is too old, or this is another library");
  }
  return found;
}

int Driver::version() const {
  int found = 0;
  check(get_version_(&found), "DriverGetVersion");
  return found;
}

void* Driver::context(int device) {
  if (vendor == Vendor::hip) { return nullptr; }
  if (device < 0) { throw DriverError(-1, "device " + std::to_string(device) + " is no GPU"); }
  if (contexts_.size() <= static_cast<std::size_t>(device)) { contexts_.resize(device + 1, nullptr); }
  if (!contexts_[device]) {
    int handle = 0;
    check(device_get_(&handle, device), "cuDeviceGet");
    check(context_retain_(&contexts_[device], handle), "cuDevicePrimaryCtxRetain");
  }
  return contexts_[device];
}

std::string Driver::describe(int code) const {
  const char *name = nullptr, *text = nullptr;
  if (vendor == Vendor::cuda) {
    cuda_error_name_(code, &name);
    cuda_error_text_(code, &text);
  } else {
    name = hip_error_name_(code);
    text = hip_error_text_(code);
  }
  return std::string(name ? name : "unknown error") + " (" + std::to_string(code) + "): " + (text ? text : "");
}

void Driver::check(int code, const char* call) const {
  if (code) { throw DriverError(code, std::string(call) + ": " + describe(code)); }
}

Current::Current(Driver& driver, void* context, int device) : driver_(driver) {
  if (driver.vendor == Vendor::cuda) {
    void* now = nullptr;
    code = driver.get_current(&now);
    if (!code && now != context) {
      code = driver.push(context);
      pushed_ = !code;
    }
    return;
  }
  int now = -1;
  code = driver.get_device(&now);
  if (!code && now != device) {
    code = driver.set_device(device);
    if (!code) { before_ = now; }
  }
}

Current::~Current() {
  if (pushed_) {
    void* popped = nullptr;
    driver_.pop(&popped);
  } else if (before_ >= 0) {
    driver_.set_device(before_);
  }
}

}  // namespace opmux
