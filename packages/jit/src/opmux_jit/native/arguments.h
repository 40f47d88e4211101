// Kernel arguments: from Python's values to the bytes that a kernel reads.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"

namespace opmux {

enum class Kind : std::uint8_t {
  pointer,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  f16,
  bf16,
  f32,
  f64,
  map,
};

struct Slot {
  Kind kind;
  std::uint32_t offset;  // in the block of all arguments
};

// The arguments of a kernel: where each lies in one block of memory.
struct Layout {
  std::vector<Slot> slots;
  std::uint32_t size = 0;

  // Reads a signature, a letter for each argument: p a pointer; b h i q signed integers of 8 to 64 bits, B H I Q
  // unsigned ones; ? a bool; e float16, E bfloat16, f float32, d float64; m a tensor map. Throws DriverError.
  explicit Layout(const std::string& signature);
};

// Writes one value into the block. On failure a Python error is set that names the kernel and the argument.
bool pack(const Slot& slot, PyObject* value, char* block, const char* kernel, Py_ssize_t place);

// The address of what a pointer argument is: an int, None, or an object with data_ptr().
bool address_of(PyObject* value, std::uint64_t* address);

// Called once, when the extension is loaded.
bool prepare_arguments();

}  // namespace opmux
