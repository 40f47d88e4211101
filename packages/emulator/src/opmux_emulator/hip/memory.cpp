// Memory: blocks of the host with guard pages around, whose addresses are the device's too; and what is known of them.
#include "runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sys/mman.h>

namespace {
constexpr u64 FIRST = 1ull << 41, LAST = 1ull << 44, GAP = 1 << 20;
constexpr u64 ADDRESSES = 1ull << 48;       // of a process, at most
std::map<u64, std::unique_ptr<Block>> all;  // by address
u64 next_address = FIRST, serial = 0;

size_t available() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  size_t kib = 0;
  while (file >> word)
    if (word == "MemAvailable:") {
      file >> kib;
      return kib << 10;
    }
  return ~size_t(0);
}
// Anonymous memory at an address of our own choosing: freed addresses are not given out again soon, so late uses are
// seen.
void* map_fresh(size_t size) {
  if (size > LAST - FIRST) return nullptr;
  for (int attempt = 0; attempt < 64; attempt++) {
    if (next_address + size > LAST) next_address = FIRST;
    u64 at = next_address;
    next_address += (size + 2 * GAP - 1) / GAP * GAP;
    void* p = mmap((void*)at, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == (void*)at) return p;
    if (p != MAP_FAILED) munmap(p, size);
  }
  return nullptr;
}
bool is_ours(u64 address) { return address >= FIRST && address < LAST; }
Error give(const char* call, void** out, size_t size, MemoryType type, unsigned flags = 0) {
  if (!out) return fail(hipErrorInvalidValue, "%s: `ptr`: expected an address, got null", call);
  *out = nullptr;
  if (!size) return hipSuccess;
  Block* b = allocate(size, type, "");
  if (!b) return fail(hipErrorOutOfMemory, "%s: `size`: %zu bytes do not fit into this machine's memory", call, size);
  b->flags = flags;
  *out = (void*)b->base;
  return hipSuccess;
}
Error take(const char* call, void* p, bool host) {
  if (!p) return hipSuccess;
  Block* b = block_at((u64)p);
  if (!b || b->base != (u64)p || !b->owned || (b->type == HOST) != host)
    return fail(hipErrorInvalidValue, "%s: `ptr`: expected the address that %s gave, got %p", call,
                host ? "hipHostMalloc" : "hipMalloc", p);
  release(b);
  return hipSuccess;
}
}  // namespace

Error check_range(const char* call, const char* argument, const void* p, size_t size, bool device_only) {
  u64 address = (u64)p;
  Block* b = block_at(address);
  if (b && size <= b->base + b->size - address) return hipSuccess;  // never a sum: it could wrap
  if (b)
    return fail(hipErrorInvalidValue, "%s: `%s`: %zu bytes at %p reach past the end of %s (%zu bytes)", call, argument,
                size, p, b->name.c_str(), b->size);
  if (is_ours(address))
    return fail(hipErrorInvalidValue, "%s: `%s`: %p is in no allocation (freed?)", call, argument, p);
  if (!p) return fail(hipErrorInvalidValue, "%s: `%s`: expected an address, got null", call, argument);
  if (device_only && !settings().pageable)
    return fail(hipErrorInvalidValue, "%s: `%s`: expected device memory, got host address %p", call, argument, p);
  if (size > ADDRESSES - std::min(address, ADDRESSES))
    return fail(hipErrorInvalidValue, "%s: `%s`: %zu bytes at %p are more than a process can have", call, argument,
                size, p);
  return hipSuccess;
}
Error product(const char* call, const char* argument, size_t count, size_t each, size_t* out) {
  if (!__builtin_mul_overflow(count, each, out)) return hipSuccess;
  return fail(hipErrorInvalidValue, "%s: `%s`: %zu times %zu bytes are more than 64 bits can count", call, argument,
              count, each);
}
Block* block_at(u64 address) {
  auto it = all.upper_bound(address);
  if (it == all.begin()) return nullptr;
  Block* b = (--it)->second.get();
  return address < b->base + std::max<size_t>(b->size, 1) ? b : nullptr;
}
std::vector<Block*> blocks() {
  std::vector<Block*> found;
  for (auto& [address, b] : all) found.push_back(b.get());
  return found;
}
// Device memory begins unwritten: a kernel that reads it first is judged. What the host can write directly counts as
// written.
Block* allocate(size_t size, MemoryType type, const std::string& name) {
  size_t mapped = (size + 4095) & ~size_t(4095);
  if (size > mapped || mapped > available() / (type == DEVICE ? 2 : 1)) return nullptr;
  void* p = map_fresh(mapped);
  if (!p) return nullptr;
  auto b = std::make_unique<Block>();
  b->base = (u64)p;
  b->size = size;
  b->type = type;
  b->mapped = mapped;
  b->name = name.empty() ? "allocation " + std::to_string(serial++) : name;
  if (type == DEVICE && name.empty()) {
    memset(p, 0xcd, size);
    b->unwritten.assign(size, 1);
  }
  Block* raw = b.get();
  all[raw->base] = std::move(b);
  return raw;
}
void release(Block* b) {
  if (b->mapped) munmap((void*)b->base, b->mapped);
  all.erase(b->base);
}
void mark_written(u64 address, size_t size) {
  Block* b = block_at(address);
  if (b && !b->unwritten.empty())
    memset(b->unwritten.data() + (address - b->base), 0, std::min<size_t>(size, b->base + b->size - address));
}

EXPORT Error hipMalloc(void** out, size_t size) {
  Guard lock(everything);
  return give("hipMalloc", out, size, DEVICE);
}
EXPORT Error hipExtMallocWithFlags(void** out, size_t size, unsigned flags) {
  Guard lock(everything);
  return give("hipExtMallocWithFlags", out, size, DEVICE, flags);
}
EXPORT Error hipMallocAsync(void** out, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return give("hipMallocAsync", out, size, DEVICE);
}
EXPORT Error hipMallocManaged(void** out, size_t size, unsigned flags) {
  Guard lock(everything);
  return give("hipMallocManaged", out, size, MANAGED, flags);
}
EXPORT Error hipMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  Guard lock(everything);
  size_t padded, size;
  if (!pitch) return fail(hipErrorInvalidValue, "hipMallocPitch: `pitch`: expected an address, got null");
  if (__builtin_add_overflow(width, 255, &padded))
    return fail(hipErrorInvalidValue, "hipMallocPitch: `width`: %zu bytes are too many for a row", width);
  padded &= ~size_t(255);
  if (Error e = product("hipMallocPitch", "height", height, padded, &size)) return e;
  *pitch = padded;
  return give("hipMallocPitch", out, size, DEVICE);
}
EXPORT Error hipHostMalloc(void** out, size_t size, unsigned flags) {
  Guard lock(everything);
  return give("hipHostMalloc", out, size, HOST, flags);
}
EXPORT Error hipHostAlloc(void** out, size_t size, unsigned flags) {
  Guard lock(everything);
  return give("hipHostAlloc", out, size, HOST, flags);
}
EXPORT Error hipMallocHost(void** out, size_t size) {
  Guard lock(everything);
  return give("hipMallocHost", out, size, HOST);
}
EXPORT Error hipMemAllocHost(void** out, size_t size) {
  Guard lock(everything);
  return give("hipMemAllocHost", out, size, HOST);
}
EXPORT Error hipFree(void* p) {
  Guard lock(everything);
  if (Error e = take("hipFree", p, false)) return e;
  return take_pending();
}
EXPORT Error hipFreeAsync(void* p, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return take("hipFreeAsync", p, false);
}
EXPORT Error hipHostFree(void* p) {
  Guard lock(everything);
  return take("hipHostFree", p, true);
}
EXPORT Error hipFreeHost(void* p) {
  Guard lock(everything);
  return take("hipFreeHost", p, true);
}

EXPORT Error hipHostRegister(void* p, size_t size, unsigned flags) {
  Guard lock(everything);
  u64 address = (u64)p;
  if (!p || !size)
    return fail(hipErrorInvalidValue, "hipHostRegister: expected an address and a size, got %p and %zu", p, size);
  if (address >= ADDRESSES || size > ADDRESSES - address)
    return fail(hipErrorInvalidValue, "hipHostRegister: %zu bytes at %p are more than a process can have", size, p);
  auto it = all.lower_bound(address + size);
  Block* before = it == all.begin() ? nullptr : std::prev(it)->second.get();
  if (before && before->base + before->size > address)
    return fail(hipErrorHostMemoryAlreadyRegistered, "hipHostRegister: %p overlaps %s", p, before->name.c_str());
  auto b = std::make_unique<Block>();
  b->base = address;
  b->size = size;
  b->type = HOST;
  b->owned = false;
  b->flags = flags;
  b->name = "registered memory " + std::to_string(serial++);
  all[address] = std::move(b);
  return hipSuccess;
}
EXPORT Error hipHostUnregister(void* p) {
  Guard lock(everything);
  Block* b = block_at((u64)p);
  if (!b || b->base != (u64)p || b->owned)
    return fail(hipErrorHostMemoryNotRegistered, "hipHostUnregister: %p is not registered", p);
  release(b);
  return hipSuccess;
}
EXPORT Error hipHostGetDevicePointer(void** out, void* p, unsigned) {
  Guard lock(everything);
  if (!out || !block_at((u64)p))
    return fail(hipErrorInvalidValue, "hipHostGetDevicePointer: %p is neither allocated nor registered here", p);
  *out = p;
  return hipSuccess;
}
EXPORT Error hipHostGetFlags(unsigned* out, void* p) {
  Guard lock(everything);
  Block* b = block_at((u64)p);
  if (!out || !b || b->type != HOST)
    return fail(hipErrorInvalidValue, "hipHostGetFlags: %p is no host memory of this library", p);
  *out = b->flags;
  return hipSuccess;
}

EXPORT Error hipMemGetInfo(size_t* free, size_t* total) {
  Guard lock(everything);
  size_t used = 0;
  for (auto& [address, b] : all)
    if (b->type == DEVICE) used += b->size;
  if (total) *total = device().memory;
  if (free) *free = device().memory > used ? device().memory - used : 0;
  return hipSuccess;
}
EXPORT Error hipMemGetAddressRange(void** base, size_t* size, void* p) {
  Guard lock(everything);
  Block* b = block_at((u64)p);
  if (!b) return fail(hipErrorNotFound, "hipMemGetAddressRange: %p is in no allocation", p);
  if (base) *base = (void*)b->base;
  if (size) *size = b->size;
  return hipSuccess;
}
EXPORT Error hipMemPtrGetInfo(void* p, size_t* size) { return hipMemGetAddressRange(nullptr, size, p); }
EXPORT Error hipPointerGetAttributes(PointerAttributes* out, const void* p) {
  Guard lock(everything);
  Block* b = block_at((u64)p);
  if (!out || (!b && is_ours((u64)p)))
    return fail(hipErrorInvalidValue, "hipPointerGetAttributes: %p is in no allocation", p);
  *out = PointerAttributes{UNREGISTERED, b ? 0 : -2, nullptr, b ? nullptr : (void*)p, 0, 0};
  if (b)
    *out =
        PointerAttributes{b->type, 0, (void*)p, b->type == DEVICE ? nullptr : (void*)p, b->type == MANAGED, b->flags};
  return hipSuccess;
}
EXPORT Error hipPointerGetAttribute(void* out, int attribute, void* p) {
  Guard lock(everything);
  Block* b = block_at((u64)p);
  bool reachable = b || (settings().pageable && !is_ours((u64)p));
  if (!out || !reachable)
    return fail(
        hipErrorInvalidValue,
        "hipPointerGetAttribute: %p is no address that kernels can use: allocate or register it, or set pageable", p);
  switch (attribute) {
    case POINTER_CONTEXT: *(void**)out = nullptr; break;
    case POINTER_MEMORY_TYPE: *(unsigned*)out = b ? b->type : HOST; break;
    case POINTER_DEVICE: *(void**)out = p; break;
    case POINTER_HOST: *(void**)out = b && b->type == DEVICE ? nullptr : p; break;
    case POINTER_BUFFER_ID: *(u64*)out = b ? b->base : 0; break;
    case POINTER_IS_MANAGED: *(bool*)out = b && b->type == MANAGED; break;
    case POINTER_ORDINAL: *(int*)out = 0; break;
    case POINTER_RANGE_START: *(void**)out = b ? (void*)b->base : p; break;
    case POINTER_RANGE_SIZE: *(size_t*)out = b ? b->size : 0; break;
    case POINTER_MAPPED: *(bool*)out = true; break;
    default: return fail(hipErrorInvalidValue, "hipPointerGetAttribute: attribute %d is not known", attribute);
  }
  return hipSuccess;
}
EXPORT Error hipMemPrefetchAsync(const void*, size_t, int, void* stream) {
  Guard lock(everything);
  return check_stream(stream);
}
EXPORT Error hipMemAdvise(const void*, size_t, int, int) { return hipSuccess; }
