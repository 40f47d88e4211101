// Copies and fills of memory: of ranges, and of rows with a pitch. What nothing wrote stays so when it is copied.
#include "runtime.h"
#include <cstring>

namespace {
// Rows are checked as one range, from the first byte of the first to the last byte of the last, before any is written.
Error check_rows(const char* call, const char* argument, const void* p, size_t pitch, size_t width, size_t height,
                 bool device_only) {
  size_t before = 0, size = 0;
  if (Error e = product(call, "height", height - 1, pitch, &before)) return e;
  if (__builtin_add_overflow(before, width, &size)) size = ~size_t(0);
  return check_range(call, argument, p, size, device_only);
}
bool writes_device(int kind) {
  return kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE || kind == DEVICE_TO_DEVICE_NO_CU;
}
bool reads_device(int kind) {
  return kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE || kind == DEVICE_TO_DEVICE_NO_CU;
}
Error check_kind(const char* call, int kind) {
  bool known = (kind >= HOST_TO_HOST && kind <= BY_ADDRESS) || kind == DEVICE_TO_DEVICE_NO_CU;
  return known ? hipSuccess : fail((Error)21, "%s: `kind`: expected 0 to 4, got %d", call, kind);
}
Error copy(const char* call, void* to, const void* from, size_t size, int kind) {
  if (!size) return hipSuccess;
  if (Error e = check_kind(call, kind)) return e;
  if (Error e = check_range(call, "dst", to, size, writes_device(kind))) return e;
  if (Error e = check_range(call, "src", from, size, reads_device(kind))) return e;
  memmove(to, from, size);
  Block *target = block_at((u64)to), *source = block_at((u64)from);
  if (target && !target->unwritten.empty()) {  // what nothing wrote stays so when it is copied
    u8* u = target->unwritten.data() + ((u64)to - target->base);
    if (source && !source->unwritten.empty()) memmove(u, source->unwritten.data() + ((u64)from - source->base), size);
    else memset(u, 0, size);
  }
  return hipSuccess;
}
Error fill(const char* call, void* p, int value, size_t count, int width) {
  if (!count) return hipSuccess;
  size_t size;
  if (Error e = product(call, "count", count, width, &size)) return e;
  if (Error e = check_range(call, "dst", p, size, true)) return e;
  if (width == 1) memset(p, value, count);
  else
    for (size_t k = 0; k < count; k++) memcpy((u8*)p + k * width, &value, width);
  mark_written((u64)p, size);
  return hipSuccess;
}
Error fill_rows(const char* call, void* p, size_t pitch, int value, size_t width, size_t height) {
  if (!width || !height) return hipSuccess;
  if (Error e = check_rows(call, "dst", p, pitch, width, height, true)) return e;
  for (size_t y = 0; y < height; y++)
    if (Error e = fill(call, (u8*)p + y * pitch, value, width, 1)) return e;
  return hipSuccess;
}
Error copy_rows(const char* call, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                size_t height, int kind) {
  if (width > to_pitch || width > from_pitch)
    return fail((Error)12, "%s: `width`: expected at most the pitches %zu and %zu, got %zu", call, to_pitch, from_pitch,
                width);
  if (!width || !height) return hipSuccess;
  if (Error e = check_kind(call, kind)) return e;
  if (Error e = check_rows(call, "dst", to, to_pitch, width, height, writes_device(kind))) return e;
  if (Error e = check_rows(call, "src", from, from_pitch, width, height, reads_device(kind))) return e;
  for (size_t y = 0; y < height; y++)
    if (Error e = copy(call, (u8*)to + y * to_pitch, (const u8*)from + y * from_pitch, width, kind)) return e;
  return hipSuccess;
}
}  // namespace

EXPORT Error hipMemcpy(void* to, const void* from, size_t size, int kind) {
  Guard lock(everything);
  if (Error e = copy("hipMemcpy", to, from, size, kind)) return e;
  return take_pending();
}
EXPORT Error hipMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy("hipMemcpyAsync", to, from, size, kind);
}
EXPORT Error hipMemcpyWithStream(void* to, const void* from, size_t size, int kind, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  if (Error e = copy("hipMemcpyWithStream", to, from, size, kind)) return e;
  return take_pending();
}
EXPORT Error hipMemcpyHtoD(void* to, void* from, size_t size) {
  Guard lock(everything);
  if (Error e = copy("hipMemcpyHtoD", to, from, size, HOST_TO_DEVICE)) return e;
  return take_pending();
}
EXPORT Error hipMemcpyDtoH(void* to, void* from, size_t size) {
  Guard lock(everything);
  if (Error e = copy("hipMemcpyDtoH", to, from, size, DEVICE_TO_HOST)) return e;
  return take_pending();
}
EXPORT Error hipMemcpyDtoD(void* to, void* from, size_t size) {
  Guard lock(everything);
  if (Error e = copy("hipMemcpyDtoD", to, from, size, DEVICE_TO_DEVICE)) return e;
  return take_pending();
}
EXPORT Error hipMemcpyHtoDAsync(void* to, const void* from, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy("hipMemcpyHtoDAsync", to, from, size, HOST_TO_DEVICE);
}
EXPORT Error hipMemcpyDtoHAsync(void* to, void* from, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy("hipMemcpyDtoHAsync", to, from, size, DEVICE_TO_HOST);
}
EXPORT Error hipMemcpyDtoDAsync(void* to, void* from, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy("hipMemcpyDtoDAsync", to, from, size, DEVICE_TO_DEVICE);
}
EXPORT Error hipMemcpyPeer(void* to, int, const void* from, int, size_t size) {
  Guard lock(everything);
  return copy("hipMemcpyPeer", to, from, size, DEVICE_TO_DEVICE);
}
EXPORT Error hipMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy("hipMemcpyPeerAsync", to, from, size, DEVICE_TO_DEVICE);
}
EXPORT Error hipMemcpy2D(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height, int kind) {
  Guard lock(everything);
  if (Error e = copy_rows("hipMemcpy2D", to, tp, from, fp, width, height, kind)) return e;
  return take_pending();
}
EXPORT Error hipMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height, int kind,
                              void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return copy_rows("hipMemcpy2DAsync", to, tp, from, fp, width, height, kind);
}
EXPORT Error hipMemset(void* p, int value, size_t size) {
  Guard lock(everything);
  return fill("hipMemset", p, value, size, 1);
}
EXPORT Error hipMemsetAsync(void* p, int value, size_t size, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return fill("hipMemsetAsync", p, value, size, 1);
}
EXPORT Error hipMemsetD8(void* p, unsigned char value, size_t count) {
  Guard lock(everything);
  return fill("hipMemsetD8", p, value, count, 1);
}
EXPORT Error hipMemsetD16(void* p, unsigned short value, size_t count) {
  Guard lock(everything);
  return fill("hipMemsetD16", p, value, count, 2);
}
EXPORT Error hipMemsetD32(void* p, int value, size_t count) {
  Guard lock(everything);
  return fill("hipMemsetD32", p, value, count, 4);
}
EXPORT Error hipMemsetD8Async(void* p, unsigned char value, size_t count, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return fill("hipMemsetD8Async", p, value, count, 1);
}
EXPORT Error hipMemsetD16Async(void* p, unsigned short value, size_t count, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return fill("hipMemsetD16Async", p, value, count, 2);
}
EXPORT Error hipMemsetD32Async(void* p, int value, size_t count, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return fill("hipMemsetD32Async", p, value, count, 4);
}
EXPORT Error hipMemset2D(void* p, size_t pitch, int value, size_t width, size_t height) {
  Guard lock(everything);
  return fill_rows("hipMemset2D", p, pitch, value, width, height);
}
EXPORT Error hipMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t height, void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return fill_rows("hipMemset2DAsync", p, pitch, value, width, height);
}
