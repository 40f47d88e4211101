#include "launch.h"

#include <structmember.h>

#include <cstring>
#include <new>

namespace opmux {

namespace {

PyObject *launch_failed = nullptr, *out_of_memory = nullptr;
constexpr int out_of_memory_code = 2;  // CUDA's and HIP's

LaunchAttribute attribute(std::uint32_t id, std::uint32_t value) {
  LaunchAttribute made{};
  made.id = id;
  made.value.words[0] = value;
  return made;
}

struct LaunchObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<Shape>* shape;
};

PyObject* call_launch(PyObject* self, PyObject* const* given, std::size_t flagged, PyObject* names) {
  const Shape& shape = **reinterpret_cast<LaunchObject*>(self)->shape;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  const Py_ssize_t wanted = 4 + static_cast<Py_ssize_t>(shape.layout.slots.size());
  if (count != wanted || (names && PyTuple_GET_SIZE(names))) {
    return PyErr_Format(PyExc_TypeError, "%s: expected a grid of 3 numbers, a stream and %zd arguments, got %zd values",
                        shape.name.c_str(), wanted - 4, count);
  }
  unsigned grid[3];
  for (int i = 0; i < 3; ++i) {
    const long size = PyLong_Check(given[i]) ? PyLong_AsLong(given[i]) : -1;
    if (size < 0 || size > 0x7fffffff) {
      PyErr_Clear();
      return PyErr_Format(PyExc_TypeError, "%s: the grid expected numbers from 0 to 2147483647, got %R",
                          shape.name.c_str(), given[i]);
    }
    grid[i] = static_cast<unsigned>(size);
  }
  std::uint64_t stream;
  if (!PyLong_Check(given[3]) || !address_of(given[3], &stream)) {
    return PyErr_Format(PyExc_TypeError, "%s: the stream expected an address, got %R", shape.name.c_str(), given[3]);
  }
  Block block;
  for (Py_ssize_t i = 4; i < count; ++i) {
    if (!pack(shape.layout.slots[i - 4], given[i], block.bytes, shape.name.c_str(), i - 4)) { return nullptr; }
  }
  if (grid[0] && grid[1] && grid[2]) {
    const int code = shape.run(grid, reinterpret_cast<void*>(stream), block.bytes);
    if (code) {
      shape.fail(code, grid);
      return nullptr;
    }
  }
  Py_RETURN_NONE;
}

void free_launch(PyObject* self) {
  delete reinterpret_cast<LaunchObject*>(self)->shape;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LaunchObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot launch_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_launch)},
    {Py_tp_members, launch_members},
    {0, nullptr},
};
PyType_Spec launch_spec = {
    "opmux_jit.Launch",
    sizeof(LaunchObject),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    launch_slots,
};
PyTypeObject* launch_type = nullptr;

}  // namespace

Shape::Shape(std::shared_ptr<Driver> of, int device, std::uint64_t function, std::string name,
             const std::string& signature, const unsigned (&block)[3], unsigned shared, const unsigned (&cluster)[3],
             bool spread, bool cooperative, bool dependent)
    : driver(std::move(of)),
      device(device),
      context(driver->context(device)),
      function(reinterpret_cast<void*>(function)),
      name(std::move(name)),
      layout(signature),
      block{block[0], block[1], block[2]},
      shared(shared),
      cooperative(cooperative) {
  if (layout.size > Block::most || layout.slots.size() > most_arguments) {
    throw DriverError(-1, this->name + ": it has " + std::to_string(layout.slots.size()) + " arguments of " +
                              std::to_string(layout.size) + " bytes, at most " + std::to_string(most_arguments) +
                              " of " + std::to_string(Block::most) + " are taken");
  }
  const bool clustered = cluster[0] * cluster[1] * cluster[2] > 1;
  if (driver->vendor == Vendor::hip && (clustered || dependent)) {
    throw DriverError(-1, this->name + ": HIP has neither clusters nor dependent launches");
  }
  if (driver->vendor == Vendor::cuda && (clustered || dependent || cooperative) && !driver->launch_extended) {
    throw DriverError(-1, this->name + ": " + driver->library +
                              " has no cuLaunchKernelEx: the driver is too old for "
                              "clusters, dependent and cooperative launches");
  }
  if (driver->vendor == Vendor::cuda && cooperative) { attributes.push_back(attribute(attribute_cooperative, 1)); }
  if (dependent) { attributes.push_back(attribute(attribute_dependent, 1)); }
  if (clustered) {
    LaunchAttribute made = attribute(attribute_cluster, 0);
    made.value.cluster = {cluster[0], cluster[1], cluster[2]};
    attributes.push_back(made);
    if (spread) { attributes.push_back(attribute(attribute_cluster_policy, cluster_policy_spread)); }
    if (cluster[0] * cluster[1] * cluster[2] > 8) {
      constexpr int non_portable_cluster_size = 14;
      Current current(*driver, context, device);
      driver->check(current.code, "cuCtxPushCurrent");
      driver->check(driver->function_set(this->function, non_portable_cluster_size, 1), "cuFuncSetAttribute");
    }
  }
}

int Shape::run(const unsigned (&grid)[3], void* stream, char* block_of_arguments) const {
  void* arguments[most_arguments];
  const std::size_t count = layout.slots.size();
  for (std::size_t i = 0; i < count; ++i) { arguments[i] = block_of_arguments + layout.slots[i].offset; }
  int code;
  PyThreadState* released = PyEval_SaveThread();
  {
    Current current(*driver, context, device);
    code = current.code;
    if (code) {
    } else if (!attributes.empty()) {
      LaunchConfig config{{grid[0], grid[1], grid[2]},
                          {block[0], block[1], block[2]},
                          shared,
                          stream,
                          const_cast<LaunchAttribute*>(attributes.data()),
                          static_cast<unsigned>(attributes.size())};
      code = driver->launch_extended(&config, function, arguments, nullptr);
    } else if (cooperative) {
      code = driver->launch_cooperative(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
                                        stream, arguments);
    } else {
      code = driver->launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream,
                            arguments, nullptr);
    }
  }
  PyEval_RestoreThread(released);
  return code;
}

void Shape::fail(int code, const unsigned (&grid)[3]) const {
  PyErr_Format(code == out_of_memory_code ? out_of_memory : launch_failed,
               "%s: the driver refused the launch on device %d: %s\n"
               "  grid: (%u, %u, %u), block: (%u, %u, %u), shared memory: %u bytes",
               name.c_str(), device, driver->describe(code).c_str(), grid[0], grid[1], grid[2], block[0], block[1],
               block[2], shared);
}

PyObject* new_launch(std::shared_ptr<Shape> shape) {
  auto* made = reinterpret_cast<LaunchObject*>(launch_type->tp_alloc(launch_type, 0));
  if (made) {
    made->vectorcall = call_launch;
    made->shape = new std::shared_ptr<Shape>(std::move(shape));
  }
  return reinterpret_cast<PyObject*>(made);
}

bool prepare_launches(PyObject* module) {
  launch_failed = PyObject_GetAttrString(module, "LaunchFailed");
  out_of_memory = PyObject_GetAttrString(module, "OutOfMemoryError");
  launch_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&launch_spec));
  return launch_failed && out_of_memory && launch_type && prepare_lists();
}

}  // namespace opmux
