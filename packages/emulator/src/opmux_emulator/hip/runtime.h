// State of the HIP library: settings, memory, modules, and the process that reads code objects.
#pragma once
#include "../native/interface.h"
#include "abi.h"
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern std::recursive_mutex everything;  // calls exclude each other: work is done before they return
using Guard = std::lock_guard<std::recursive_mutex>;

// errors.cpp. A failing call returns fail(...): the text is what hipGetErrorString gives for that code next.
Error fail(Error code, const char* format, ...) __attribute__((format(printf, 2, 3)));
Error launch_failed(Error code, const std::string& text);  // also returned by the next call that synchronises
Error take_pending();

// settings.cpp
struct Settings {
  std::string text, arch = "gfx942", python = "python3";
  bool pageable = false;
};
struct Device {
  const char *arch, *name, *target;
  size_t memory, lds;
  int units, clock_khz, memory_clock_khz, bus_bits, l2, minor, xccs;
};
const Settings& settings();
const Device& device();

// memory.cpp. A device address is the host's address of the same byte.
struct Block {
  u64 base;
  size_t size;
  MemoryType type;
  std::string name;
  std::vector<u8> unwritten;
  bool writable = true, owned = true;
  unsigned flags = 0;
  size_t mapped = 0;
};
Block* block_at(u64 address);  // the block that holds it
Block* allocate(size_t size, MemoryType type, const std::string& name);
void release(Block* block);
std::vector<Block*> blocks();
void mark_written(u64 address, size_t size);
// Whether `size` bytes at an address may be used: inside one block, or memory of the host that is none of ours.
Error check_range(const char* call, const char* argument, const void* p, size_t size, bool device_only);
Error product(const char* call, const char* argument, size_t count, size_t each,
              size_t* out);  // which must fit 64 bits

// service.cpp: a Python process that knows code objects, metadata and words.
struct Reply {
  Error status;
  std::string data;
  size_t at = 0;
  template <class T>
  T get() {
    T x{};
    if (at + sizeof x <= data.size()) __builtin_memcpy(&x, data.data() + at, sizeof x);
    at += sizeof x;
    return x;
  }
  std::string bytes(size_t n) {
    std::string s = at < data.size() ? data.substr(at, n) : "";
    at += n;
    return s;
  }
  std::string text() { return bytes(get<u32>()); }
};
struct Message {
  std::string data;
  template <class T>
  Message& put(const T& x) {
    data.append((const char*)&x, sizeof x);
    return *this;
  }
  Message& text(const std::string& s) {
    put((u32)s.size());
    data += s;
    return *this;
  }
};
enum Request : u32 { LOAD = 1, KERNEL = 2, TABLES = 3, PREPARE = 4, JUDGE = 5, UNLOAD = 6, EXTRACT = 7 };
Reply ask(Request request, const Message& message);  // status hipErrorNotInitialized where there is no such process
const std::string& interpreter_path();

// images.cpp
size_t readable_from(const void* image);  // bytes to the end of readable memory: what an image of unknown size can have
// The part of an image that is for the arch that is played. `whole`: `size` is the image's own, not a bound.
Error code_object(const void* image, size_t size, bool whole, std::string& out);

// modules.cpp
struct Argument {
  u32 offset, size;
};
struct Module;
struct Function {
  Module* module;
  std::string name;
  u32 id, vgprs, accum, scratch, lds, max_threads, kernarg, explicit_end;
  bool described;
  std::vector<Argument> arguments;
  std::vector<i32> table, at;
  int instructions = 0;
};
struct Symbol {
  u64 value, size;
};
struct Module {
  u32 id;
  std::string arch;
  Block* image;
  std::map<std::string, Symbol> symbols;
  std::map<std::string, std::unique_ptr<Function>> functions;
};
bool is_module(const void* handle);
bool is_function(const void* handle);
Error load_module(Module** out, const void* image, size_t size, bool whole);  // as for code_object
Error function_of(Module* module, const char* name, Function** out);
Error function_of_host(const void* host, Function** out);  // a kernel registered by compiled host code

// launch.cpp
struct LaunchSize {
  u32 grid[3], block[3];
  size_t shared;
};
Error launch(Function* function, const LaunchSize& size, void** parameters, void** extra);
// streams.cpp
Error check_stream(void* stream);
void record_event(void* event);
