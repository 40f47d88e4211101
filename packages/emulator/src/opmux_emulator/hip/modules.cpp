// Modules: code objects and bundles of them, their functions and variables, and what compiled host code registers.
#include "runtime.h"
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>

namespace {
std::set<const void*> modules, functions;
struct Registered {
  std::vector<std::pair<const void*, std::string>> kernels, variables;
  const void* image;
  u32 magic = FAT_BINARY_MAGIC;
  Module* module = nullptr;
  Error status = hipSuccess;
  std::string wrong;
};
std::vector<std::unique_ptr<Registered>> registered;

Error load(Module** out, const std::string& code) {
  if (code.size() > UINT32_MAX)
    return fail(hipErrorInvalidImage, "a code object of %zu bytes; expected less than 4 GiB", code.size());
  Reply reply = ask(LOAD, Message().text(code));
  if (reply.status) return fail(reply.status, "%s", reply.data.c_str());
  auto m = std::make_unique<Module>();
  m->id = reply.get<u32>();
  m->arch = reply.text();
  if (m->arch != device().arch) {
    ask(UNLOAD, Message().put(m->id));
    return fail(hipErrorNoBinaryForGpu, "the device plays %s; this code object is for %s", device().arch,
                m->arch.c_str());
  }
  for (u32 n = reply.get<u32>(); n; n--) {
    std::string name = reply.text();
    Symbol s;
    s.value = reply.get<u64>();
    s.size = reply.get<u64>();
    m->symbols[name] = s;
  }
  std::vector<std::pair<u64, u64>> relocations;
  for (u32 n = reply.get<u32>(); n; n--) {
    u64 at = reply.get<u64>();
    relocations.push_back({at, reply.get<u64>()});
  }
  std::string image = reply.text();
  m->image = allocate(std::max<size_t>(image.size(), 4), DEVICE, "code object " + std::to_string(m->id));
  if (!m->image) return fail(hipErrorOutOfMemory, "no memory for a code object of %zu bytes", image.size());
  m->image->owned = false;
  memcpy((void*)m->image->base, image.data(), image.size());
  for (auto [at, addend] : relocations)
    if (at + 8 <= image.size()) {
      u64 value = m->image->base + addend;
      memcpy((u8*)m->image->base + at, &value, 8);
    }
  modules.insert(m.get());
  *out = m.release();
  return hipSuccess;
}
Error load_registered(Registered& r) {
  if (r.module && r.module->arch == device().arch) return hipSuccess;
  if (r.magic != FAT_BINARY_MAGIC)
    return fail(hipErrorInvalidImage, "what compiled code registered is not HIP's: expected magic %08x, got %08x",
                FAT_BINARY_MAGIC, r.magic);
  return load_module(&r.module, r.image, readable_from(r.image), false);
}
Error variable(const void* host, u64* address, size_t* size) {
  for (auto& r : registered)
    for (auto& [p, name] : r->variables)
      if (p == host) {
        if (Error e = load_registered(*r)) return e;
        auto found = r->module->symbols.find(name);
        if (found == r->module->symbols.end())
          return fail(hipErrorInvalidSymbol, "the code object has no variable %s", name.c_str());
        *address = r->module->image->base + found->second.value;
        *size = found->second.size;
        return hipSuccess;
      }
  return fail(hipErrorInvalidSymbol, "%p is no variable that compiled code registered", host);
}
}  // namespace

bool is_module(const void* handle) { return modules.count(handle); }
bool is_function(const void* handle) { return functions.count(handle); }
// The callers are C: an exception may not leave.
Error load_module(Module** out, const void* image, size_t size, bool whole) try {
  std::string code;
  if (Error e = code_object(image, size, whole, code)) return e;
  return load(out, code);
} catch (const std::exception& error) {
  return fail(hipErrorOutOfMemory, "a code object cannot be loaded: %s", error.what());
}
Error function_of(Module* m, const char* name, Function** out) {
  auto& known = m->functions[name];
  if (!known) {
    Reply reply = ask(KERNEL, Message().put(m->id).text(name));
    if (reply.status) {
      m->functions.erase(name);
      return fail(reply.status, "%s", reply.data.c_str());
    }
    known = std::make_unique<Function>();
    Function& f = *known;
    f.module = m;
    f.name = name;
    f.id = reply.get<u32>();
    f.vgprs = reply.get<u32>();
    f.accum = reply.get<u32>();
    f.scratch = reply.get<u32>();
    f.lds = reply.get<u32>();
    f.max_threads = reply.get<u32>();
    f.kernarg = reply.get<u32>();
    f.explicit_end = reply.get<u32>();
    f.described = reply.get<u32>();
    for (u32 n = reply.get<u32>(); n; n--) {
      u32 offset = reply.get<u32>();
      f.arguments.push_back({offset, reply.get<u32>()});
    }
    functions.insert(&f);
  }
  *out = known.get();
  return hipSuccess;
}
Error function_of_host(const void* host, Function** out) {
  for (auto& r : registered)
    for (auto& [p, name] : r->kernels)
      if (p == host) {
        if (Error e = load_registered(*r)) return e;
        return function_of(r->module, name.c_str(), out);
      }
  if (is_function(host)) {
    *out = (Function*)host;
    return hipSuccess;
  }
  return fail(hipErrorInvalidDeviceFunction, "%p is no kernel that compiled code registered", host);
}

EXPORT Error hipModuleLoadData(Module** out, const void* image) {
  Guard lock(everything);
  if (!out || !image)
    return fail(hipErrorInvalidValue, "hipModuleLoadData: expected an address and an image, got null");
  return load_module(out, image, readable_from(image), false);
}
EXPORT Error hipModuleLoadDataEx(Module** out, const void* image, unsigned, void*, void**) {
  return hipModuleLoadData(out, image);
}
EXPORT Error hipModuleLoadFatBinary(Module** out, const void* image) { return hipModuleLoadData(out, image); }
EXPORT Error hipModuleLoad(Module** out, const char* path) {
  Guard lock(everything);
  std::ifstream file(path ? path : "", std::ios::binary);
  if (!out || !file) return fail(hipErrorFileNotFound, "hipModuleLoad: %s cannot be read", path ? path : "null");
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  return load_module(out, bytes.data(), bytes.size(), true);
}
EXPORT Error hipModuleUnload(Module* m) {
  Guard lock(everything);
  if (!modules.erase(m))
    return fail(hipErrorInvalidHandle, "hipModuleUnload: %p is no module of this library, or was unloaded", (void*)m);
  for (auto& [name, f] : m->functions) functions.erase(f.get());
  ask(UNLOAD, Message().put(m->id));
  release(m->image);
  delete m;
  return hipSuccess;
}
EXPORT Error hipModuleGetFunction(Function** out, Module* m, const char* name) {
  Guard lock(everything);
  if (!is_module(m))
    return fail(hipErrorInvalidHandle, "hipModuleGetFunction: %p is no module of this library, or was unloaded",
                (void*)m);
  if (!out || !name)
    return fail(hipErrorInvalidValue, "hipModuleGetFunction: expected an address and a name, got null");
  return function_of(m, name, out);
}
EXPORT Error hipModuleGetGlobal(void** address, size_t* size, Module* m, const char* name) {
  Guard lock(everything);
  if (!is_module(m))
    return fail(hipErrorInvalidHandle, "hipModuleGetGlobal: %p is no module of this library, or was unloaded",
                (void*)m);
  auto found = m->symbols.find(name ? name : "");
  if (found == m->symbols.end())
    return fail(hipErrorNotFound, "hipModuleGetGlobal: the code object has no variable %s", name ? name : "null");
  if (address) *address = (void*)(m->image->base + found->second.value);
  if (size) *size = found->second.size;
  return hipSuccess;
}
EXPORT Error hipFuncGetAttribute(int* out, int attribute, Function* f) {
  Guard lock(everything);
  if (!is_function(f))
    return fail(hipErrorInvalidHandle, "hipFuncGetAttribute: %p is no function of this library", (void*)f);
  switch (attribute) {
    case MAX_THREADS: *out = f->max_threads; break;
    case SHARED_SIZE: *out = f->lds; break;
    case LOCAL_SIZE: *out = f->scratch; break;
    case NUM_REGS: *out = f->vgprs; break;
    case MAX_DYNAMIC_SHARED: *out = (int)device().lds - (int)f->lds; break;
    case BINARY_VERSION: *out = 90; break;
    default: *out = 0;
  }
  return hipSuccess;
}
EXPORT Error hipFuncGetAttributes(FunctionAttributes* out, const void* host) {
  Guard lock(everything);
  Function* f;
  if (Error e = function_of_host(host, &f)) return e;
  *out = FunctionAttributes{
      90, 0, 0, f->scratch, (int)device().lds - (int)f->lds, (int)f->max_threads, (int)f->vgprs, 0, 90, f->lds};
  return hipSuccess;
}
EXPORT Error hipGetFuncBySymbol(Function** out, const void* host) {
  Guard lock(everything);
  return function_of_host(host, out);
}
EXPORT const char* hipKernelNameRef(Function* f) { return is_function(f) ? f->name.c_str() : nullptr; }
EXPORT Error hipFuncSetAttribute(const void*, int, int) { return hipSuccess; }
EXPORT Error hipFuncSetCacheConfig(const void*, int) { return hipSuccess; }
EXPORT Error hipFuncSetSharedMemConfig(const void*, int) { return hipSuccess; }

EXPORT Error hipGetSymbolAddress(void** out, const void* symbol) {
  Guard lock(everything);
  u64 address;
  size_t size;
  if (Error e = variable(symbol, &address, &size)) return e;
  *out = (void*)address;
  return hipSuccess;
}
EXPORT Error hipGetSymbolSize(size_t* out, const void* symbol) {
  Guard lock(everything);
  u64 address;
  return variable(symbol, &address, out);
}
EXPORT Error hipMemcpyToSymbol(const void* symbol, const void* from, size_t size, size_t offset, int) {
  Guard lock(everything);
  u64 address;
  size_t whole;
  if (Error e = variable(symbol, &address, &whole)) return e;
  if (size > whole || offset > whole - size)
    return fail(hipErrorInvalidValue, "hipMemcpyToSymbol: %zu bytes at %zu do not fit into %zu", size, offset, whole);
  memcpy((u8*)address + offset, from, size);
  return hipSuccess;
}
EXPORT Error hipMemcpyFromSymbol(void* to, const void* symbol, size_t size, size_t offset, int) {
  Guard lock(everything);
  u64 address;
  size_t whole;
  if (Error e = variable(symbol, &address, &whole)) return e;
  if (size > whole || offset > whole - size)
    return fail(hipErrorInvalidValue, "hipMemcpyFromSymbol: %zu bytes at %zu do not lie in %zu", size, offset, whole);
  memcpy(to, (u8*)address + offset, size);
  return hipSuccess;
}

// What clang's host code calls when it is loaded. Code objects are read at the first use of one of their kernels.
EXPORT void** __hipRegisterFatBinary(const FatBinary* binary) {
  Guard lock(everything);
  auto r = std::make_unique<Registered>();
  r->image = binary ? binary->data : nullptr;
  r->magic = binary ? binary->magic : 0;
  registered.push_back(std::move(r));
  return (void**)registered.back().get();
}
EXPORT void __hipRegisterFunction(void** handle, const void* host, char*, const char* name, unsigned, void*, void*,
                                  void*, void*, int*) {
  Guard lock(everything);
  ((Registered*)handle)->kernels.push_back({host, name});
}
EXPORT void __hipRegisterVar(void** handle, void* host, char*, char* name, int, size_t, int, int) {
  Guard lock(everything);
  ((Registered*)handle)->variables.push_back({host, name});
}
EXPORT void __hipUnregisterFatBinary(void** handle) {
  Guard lock(everything);
  for (auto it = registered.begin(); it != registered.end(); ++it)
    if (it->get() == (Registered*)handle) {
      registered.erase(it);
      return;
    }
}
