// One kernel with everything about its launches that does not change; and lists of launches that are made together.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "driver.h"

namespace opmux {

constexpr std::size_t most_arguments = 512;

// Room for a block of arguments: on the stack, with the alignment of tensor maps.
struct alignas(map_alignment) Block {
  static constexpr std::size_t most = 4096;  // CUDA's own limit before 12.1
  char bytes[most];
};

// A kernel, and how it is launched.
struct Shape {
  std::shared_ptr<Driver> driver;
  int device;
  void* context;
  void* function;
  std::string name;
  Layout layout;
  unsigned block[3];
  unsigned shared;
  std::vector<LaunchAttribute> attributes;
  bool cooperative;
  PyObject* owner = nullptr;  // owned: keeps the code loaded

  ~Shape() { Py_XDECREF(owner); }
  // Throws DriverError where the vendor's driver cannot do what is asked.
  Shape(std::shared_ptr<Driver> driver, int device, std::uint64_t function, std::string name,
        const std::string& signature, const unsigned (&block)[3], unsigned shared, const unsigned (&cluster)[3],
        bool spread, bool cooperative, bool dependent);

  // Launches with arguments that are ready; returns the driver's code. The GIL is released meanwhile.
  int run(const unsigned (&grid)[3], void* stream, char* block_of_arguments) const;
  // Sets a Python error that says what was refused.
  void fail(int code, const unsigned (&grid)[3]) const;
};

// Called once, when the extension is loaded: makes the types, and remembers the exception for refused launches.
bool prepare_launches(PyObject* module);
bool prepare_lists();

// A Python callable: launch(grid_x, grid_y, grid_z, stream, *arguments).
PyObject* new_launch(std::shared_ptr<Shape> shape);

// Where a launch of a list takes an address from: a tensor of the call, and how many bytes after its beginning.
struct FromTensor {
  std::uint32_t argument, tensor;
  std::uint64_t offset;
};

// A tensor map that depends on a tensor's address only: made by a Python callable from the tensor, and kept.
struct MapOfTensor {
  std::uint32_t argument, tensor;
  PyObject* make;  // owned
};

struct Step {
  std::shared_ptr<Shape> shape;
  unsigned grid[3];
  std::vector<char> fixed;  // the block of arguments, without addresses and maps
  std::vector<FromTensor> addresses;
  std::vector<MapOfTensor> maps;
};

// A Python callable: launches(*tensors) makes every launch on the current stream and returns True; it returns False,
// having launched nothing, where a tensor's address is not a multiple of 16.
PyObject* new_launches(std::vector<Step> steps, std::size_t tensors, PyObject* stream_of, int device);

}  // namespace opmux
