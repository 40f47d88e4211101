// Code objects in what a program hands over: ELF files, bundles of clang's, compressed bundles. Nothing outside their
// bytes is read.
#include "runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <fstream>

namespace {
constexpr char BUNDLE[] = "__CLANG_OFFLOAD_BUNDLE__";
constexpr size_t MAGIC_SIZE = sizeof BUNDLE - 1;
constexpr u64 MAX_ENTRIES = 1024;

bool is_elf(const u8* p) { return !memcmp(p, ELFMAG, SELFMAG) && p[EI_CLASS] == ELFCLASS64; }
// Bytes of a code object in memory: as far as the last of its headers, segments and sections; 0 where they do not fit
// into `size`.
size_t elf_size(const u8* p, size_t size) {
  Elf64_Ehdr h;
  memcpy(&h, p, sizeof h);
  size_t end = sizeof h;
  auto inside = [&](u64 at, u64 bytes) {
    if (at > size || bytes > size - at) return false;
    end = std::max<size_t>(end, at + bytes);
    return true;
  };
  if (!inside(h.e_phoff, (u64)h.e_phnum * sizeof(Elf64_Phdr)) ||
      !inside(h.e_shoff, (u64)h.e_shnum * sizeof(Elf64_Shdr)))
    return 0;
  for (int k = 0; k < h.e_phnum; k++) {
    Elf64_Phdr x;
    memcpy(&x, p + h.e_phoff + k * sizeof x, sizeof x);
    if (!inside(x.p_offset, x.p_filesz)) return 0;
  }
  for (int k = 0; k < h.e_shnum; k++) {
    Elf64_Shdr x;
    memcpy(&x, p + h.e_shoff + k * sizeof x, sizeof x);
    if (x.sh_type != SHT_NOBITS && !inside(x.sh_offset, x.sh_size)) return 0;
  }
  return end;
}
// The part of a bundle for the arch that is played (clang-offload-bundler's binary format): "...--gfx942", features
// after it.
Error unbundle(const u8* p, size_t size, std::string& out) {
  if (size < MAGIC_SIZE + 8 || memcmp(p, BUNDLE, MAGIC_SIZE))
    return fail(hipErrorInvalidImage, "expected a bundle of code objects, got %zu bytes that are none", size);
  size_t at = MAGIC_SIZE;
  std::string found;
  auto field = [&] {
    u64 x;
    memcpy(&x, p + at, sizeof x);
    at += sizeof x;
    return (unsigned long long)x;
  };
  auto count = field();
  if (count > MAX_ENTRIES) return fail(hipErrorInvalidImage, "a damaged bundle: it claims %llu entries", count);
  for (unsigned long long k = 0; k < count; k++) {
    if (size - at < 24)
      return fail(hipErrorInvalidImage, "a damaged bundle: it ends at byte %zu, in entry %llu of %llu", size, k + 1,
                  count);
    auto offset = field(), bytes = field(), length = field();
    if (length > size - at)
      return fail(hipErrorInvalidImage, "a damaged bundle: it ends at byte %zu, in the name of entry %llu of %llu",
                  size, k + 1, count);
    std::string target((const char*)p + at, length);
    at += length;
    if (offset > size || bytes > size - offset)
      return fail(hipErrorInvalidImage,
                  "a damaged bundle: entry %llu of %llu has %llu bytes at %llu; the bundle has %zu", k + 1, count,
                  bytes, offset, size);
    size_t name = target.find("gfx");
    if (name == std::string::npos) continue;
    std::string arch = target.substr(name, target.find(':', name) - name);
    if (arch == device().arch) {
      out.assign((const char*)p + offset, bytes);
      return hipSuccess;
    }
    found += (found.empty() ? "" : ", ") + arch;
  }
  return fail(hipErrorNoBinaryForGpu, "the device plays %s; this bundle has code for %s", device().arch,
              found.empty() ? "no GPU" : found.c_str());
}
// A compressed bundle: magic, version, method, then sizes and a hash. Version 1 does not say how long it is. The
// service unpacks it.
Error unpack(const u8* p, size_t size, bool whole, std::string& out) {
  u16 version;
  u64 total = 0;
  memcpy(&version, p + 4, sizeof version);
  if (version < 2 && !whole)
    return fail(hipErrorInvalidImage,
                "a compressed bundle of version 1 does not say its size: compile with --no-offload-compress");
  memcpy(&total, p + 8, version < 3 ? 4 : 8);
  if (whole) total = size;
  if (total > size || total > UINT32_MAX)
    return fail(hipErrorInvalidImage, "a damaged compressed bundle: it claims %llu bytes; %zu can be read",
                (unsigned long long)total, size);
  Reply reply = ask(EXTRACT, Message().text(std::string((const char*)p, total)));
  if (reply.status) return fail(reply.status, "%s", reply.data.c_str());
  return unbundle((const u8*)reply.data.data(), reply.data.size(), out);
}
}  // namespace

size_t readable_from(const void* image) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  u64 at = (u64)image, end = at;
  while (std::getline(maps, line)) {  // in the order of addresses
    unsigned long long first, last;
    char access[8];
    if (sscanf(line.c_str(), "%llx-%llx %7s", &first, &last, access) != 3 || last <= end) continue;
    if (first > end || access[0] != 'r') break;
    end = last;
  }
  return end - at;
}
Error code_object(const void* image, size_t size, bool whole, std::string& out) {
  const u8* p = (const u8*)image;
  if (!p) return fail(hipErrorInvalidImage, "expected a code object or a bundle, got null");
  if (size < sizeof(Elf64_Ehdr))
    return fail(hipErrorInvalidImage, "expected a code object or a bundle, got %zu bytes", size);
  if (!memcmp(p, BUNDLE, MAGIC_SIZE)) return unbundle(p, size, out);
  if (!memcmp(p, "CCOB", 4)) return unpack(p, size, whole, out);
  if (!is_elf(p))
    return fail(hipErrorInvalidImage, "expected a code object (ELF) or a bundle, got bytes %02x %02x %02x %02x", p[0],
                p[1], p[2], p[3]);
  if (!whole) size = elf_size(p, size);
  if (!size)
    return fail(hipErrorInvalidImage,
                "a damaged code object: its headers, segments or sections lie outside readable memory");
  out.assign((const char*)p, size);
  return hipSuccess;
}
