// Stands for libcuda.so.1 and libamdhip64.so: keeps what it is given, for tests to read. A module's image is text:
// "KERNEL SIZE SIZE ...;KERNEL ..." with the bytes of each argument; "refuse CODE" makes loading fail.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct FakeFunction {
  std::string name;
  std::vector<int> sizes;
};
struct FakeModule {
  std::map<std::string, FakeFunction> functions;
};
struct Fake {
  std::string log;  // a line for each call
  std::map<std::string, int> failing;
  int live_modules = 0;
  int version = 13000;
};
Fake fake;
std::string shown;
thread_local std::vector<std::intptr_t> contexts{0};
thread_local int hip_device = 0;

std::string hex(const void* data, std::size_t size) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

int failed(const std::string& call) {
  auto found = fake.failing.find(call);
  return found == fake.failing.end() ? 0 : found->second;
}

int load(void** module, const void* image) {
  if (const int code = failed("load")) { return code; }
  const std::string text(static_cast<const char*>(image));
  if (text.rfind("refuse ", 0) == 0) { return std::atoi(text.c_str() + 7); }
  auto* made = new FakeModule;
  std::istringstream kernels(text);
  std::string one;
  while (std::getline(kernels, one, ';')) {
    std::istringstream words(one);
    FakeFunction function;
    words >> function.name;
    for (int size; words >> size;) { function.sizes.push_back(size); }
    made->functions[function.name] = function;
  }
  *module = made;
  ++fake.live_modules;
  return 0;
}

int unload(void* module) {
  if (const int code = failed("unload")) { return code; }
  delete static_cast<FakeModule*>(module);
  --fake.live_modules;
  return 0;
}

int find(void** function, void* module, const char* name) {
  auto& functions = static_cast<FakeModule*>(module)->functions;
  auto found = functions.find(name);
  if (found == functions.end()) { return 500; }
  *function = &found->second;
  return 0;
}

int variable(void** address, std::size_t* size, void*, const char* name) {
  if (std::string(name) != "table") { return 500; }
  *address = reinterpret_cast<void*>(0x7000);
  *size = 96;
  return 0;
}

int launched(const char* how, void* function, const unsigned* grid, const unsigned* block, unsigned shared,
             void* stream, void** arguments, const std::string& more) {
  if (const int code = failed("launch")) { return code; }
  const auto& kernel = *static_cast<FakeFunction*>(function);
  std::ostringstream line;
  line << how << " " << kernel.name << " on " << (contexts.back() ? contexts.back() - 0x1000 : hip_device) << " grid "
       << grid[0] << "," << grid[1] << "," << grid[2] << " block " << block[0] << "," << block[1] << "," << block[2]
       << " shared " << shared << " stream " << reinterpret_cast<std::uintptr_t>(stream) << more << " args";
  for (std::size_t i = 0; i < kernel.sizes.size(); ++i) { line << " " << hex(arguments[i], kernel.sizes[i]); }
  fake.log += line.str() + "\n";
  return 0;
}

struct Attribute {
  std::uint32_t id, pad, words[16];
};
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

}  // namespace

extern "C" {

const char* fake_log() {
  shown = fake.log;
  fake.log.clear();
  return shown.c_str();
}
void fake_fail(const char* call, int code) {
  if (code) {
    fake.failing[call] = code;
  } else {
    fake.failing.erase(call);
  }
}
void fake_version(int version) { fake.version = version; }
int fake_modules() { return fake.live_modules; }
int fake_context() { return static_cast<int>(contexts.back() ? contexts.back() - 0x1000 : -1); }
int fake_depth() { return static_cast<int>(contexts.size()); }

int cuInit(unsigned) { return failed("init"); }
int cuDriverGetVersion(int* version) { return *version = fake.version, 0; }
int cuGetErrorName(int code, const char** name) {
  *name = code == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_SOME";
  return 0;
}
int cuGetErrorString(int, const char** text) { return *text = "the text of the error", 0; }
int cuDeviceGet(int* device, int ordinal) { return ordinal > 3 ? 101 : (*device = ordinal, 0); }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<std::intptr_t>(0x1000 + device));
  return 0;
}
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(contexts.back()), 0; }
int cuCtxPushCurrent_v2(void* context) {
  if (const int code = failed("push")) { return code; }
  return contexts.push_back(reinterpret_cast<std::intptr_t>(context)), 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = reinterpret_cast<void*>(contexts.back());
  contexts.pop_back();
  return 0;
}
int cuModuleLoadData(void** module, const void* image) { return load(module, image); }
int cuModuleUnload(void* module) { return unload(module); }
int cuModuleGetFunction(void** function, void* module, const char* name) { return find(function, module, name); }
int cuModuleGetGlobal_v2(void** address, std::size_t* size, void* module, const char* name) {
  return variable(address, size, module, name);
}
int cuFuncGetAttribute(int* value, int attribute, void*) { return *value = 100 + attribute, failed("attribute"); }
int cuFuncSetAttribute(void* function, int attribute, int value) {
  const auto& kernel = *static_cast<FakeFunction*>(function);
  fake.log += "set " + kernel.name + " " + std::to_string(attribute) + " " + std::to_string(value) + "\n";
  return failed("attribute");
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return extra ? 1 : launched("plain", function, grid, block, shared, stream, arguments, "");
}
int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
  std::ostringstream more;
  for (unsigned i = 0; i < config->count; ++i) {
    const Attribute& one = config->attributes[i];
    more << " attribute " << one.id << ":" << one.words[0] << "," << one.words[1] << "," << one.words[2];
  }
  return extra ? 1
               : launched("extended", function, config->grid, config->block, config->shared, config->stream, arguments,
                          more.str());
}
int cuTensorMapEncodeTiled(void* map, int dtype, std::uint32_t rank, void* address, const std::uint64_t* sizes,
                           const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps,
                           int interleave, int swizzle, int promotion, int fill) {
  if (const int code = failed("encode")) { return code; }
  if (reinterpret_cast<std::uintptr_t>(map) % 64) { return 1; }
  std::ostringstream line;
  line << "encode dtype " << dtype << " address " << reinterpret_cast<std::uintptr_t>(address) << " interleave "
       << interleave << " swizzle " << swizzle << " promotion " << promotion << " fill " << fill << " dims";
  for (std::uint32_t i = 0; i < rank; ++i) {
    line << " " << sizes[i] << "/" << (i ? strides[i - 1] : 0) << "/" << box[i] << "/" << steps[i];
  }
  fake.log += line.str() + "\n";
  std::memset(map, 0x5a, 128);
  std::memcpy(map, &address, 8);
  return 0;
}

int hipInit(unsigned) { return failed("init"); }
int hipDriverGetVersion(int* version) { return *version = 60443482, 0; }
const char* hipGetErrorName(int) { return "hipErrorSome"; }
const char* hipGetErrorString(int) { return "the text of the error"; }
int hipGetDevice(int* device) { return *device = hip_device, 0; }
int hipSetDevice(int device) { return device > 3 ? 101 : (hip_device = device, 0); }
int hipModuleLoadData(void** module, const void* image) { return load(module, image); }
int hipModuleUnload(void* module) { return unload(module); }
int hipModuleGetFunction(void** function, void* module, const char* name) { return find(function, module, name); }
int hipModuleGetGlobal(void** address, std::size_t* size, void* module, const char* name) {
  return variable(address, size, module, name);
}
int hipFuncGetAttribute(int* value, int attribute, void*) { return *value = 200 + attribute, 0; }
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void** extra) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return extra ? 1 : launched("hip", function, grid, block, shared, stream, arguments, "");
}
int hipModuleLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                     unsigned bz, unsigned shared, void* stream, void** arguments) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launched("hip cooperative", function, grid, block, shared, stream, arguments, "");
}
}
