// What Python sees: drivers, modules, attributes, tensor maps; and how launches are made. Launching itself does not go
// through pybind11, whose dispatch costs more than the launch's own work.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "launch.h"

namespace py = pybind11;
using namespace opmux;

namespace {

using Triple = std::array<unsigned, 3>;

std::uint64_t as_number(void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
void* as_pointer(std::uint64_t number) { return reinterpret_cast<void*>(number); }

// Runs a call of the driver on a device, without the GIL; throws DriverError.
template <class Call>
void on_device(Driver& driver, int device, const char* name, Call call) {
  void* context = driver.context(device);
  int code;
  {
    py::gil_scoped_release released;
    Current current(driver, context, device);
    code = current.code ? current.code : call();
  }
  driver.check(code, name);
}

std::uint64_t load(Driver& driver, int device, const py::bytes& image) {
  char* data;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(image.ptr(), &data, &size)) { throw py::error_already_set(); }
  void* module = nullptr;
  on_device(driver, device, "ModuleLoadData", [&] { return driver.module_load(&module, data); });
  return as_number(module);
}

void unload(Driver& driver, int device, std::uint64_t module) {
  on_device(driver, device, "ModuleUnload", [&] { return driver.module_unload(as_pointer(module)); });
}

std::uint64_t function(Driver& driver, int device, std::uint64_t module, const std::string& name) {
  void* found = nullptr;
  on_device(driver, device, "ModuleGetFunction",
            [&] { return driver.module_function(&found, as_pointer(module), name.c_str()); });
  return as_number(found);
}

std::pair<std::uint64_t, std::size_t> global(Driver& driver, int device, std::uint64_t module,
                                             const std::string& name) {
  void* address = nullptr;
  std::size_t size = 0;
  on_device(driver, device, "ModuleGetGlobal",
            [&] { return driver.module_global(&address, &size, as_pointer(module), name.c_str()); });
  return {as_number(address), size};
}

int get_attribute(Driver& driver, int device, std::uint64_t function, int attribute) {
  int value = 0;
  on_device(driver, device, "FuncGetAttribute",
            [&] { return driver.function_get(&value, attribute, as_pointer(function)); });
  return value;
}

void set_attribute(Driver& driver, int device, std::uint64_t function, int attribute, int value) {
  if (!driver.function_set) { throw DriverError(-1, "HIP's kernels have no attributes that can be set"); }
  on_device(driver, device, "FuncSetAttribute",
            [&] { return driver.function_set(as_pointer(function), attribute, value); });
}

py::bytes tensor_map(Driver& driver, int device, int dtype, std::uint64_t address,
                     const std::vector<std::uint64_t>& sizes, const std::vector<std::uint64_t>& strides,
                     const std::vector<std::uint32_t>& box, const std::vector<std::uint32_t>& steps, int interleave,
                     int swizzle, int promotion, int fill) {
  if (!driver.encode_tiled) {
    throw DriverError(-1, driver.library + " cannot make tensor maps: that takes CUDA 12 or newer");
  }
  if (sizes.empty() || sizes.size() != box.size() || sizes.size() != steps.size() ||
      sizes.size() != strides.size() + 1) {
    throw DriverError(-1, "a tensor map of n dims takes n sizes, n - 1 strides, a box and steps of n");
  }
  alignas(map_alignment) char map[map_size] = {};
  on_device(driver, device, "cuTensorMapEncodeTiled", [&] {
    return driver.encode_tiled(map, dtype, static_cast<std::uint32_t>(sizes.size()), as_pointer(address), sizes.data(),
                               strides.data(), box.data(), steps.data(), interleave, swizzle, promotion, fill);
  });
  return py::bytes(map, map_size);
}

std::shared_ptr<Shape> shape(std::shared_ptr<Driver> driver, int device, std::uint64_t function,
                             const std::string& name, const std::string& signature, const Triple& block,
                             unsigned shared, const Triple& cluster, bool spread, bool cooperative, bool dependent,
                             const py::object& owner) {
  const unsigned blocks[3] = {block[0], block[1], block[2]}, clusters[3] = {cluster[0], cluster[1], cluster[2]};
  auto made = std::make_shared<Shape>(std::move(driver), device, function, name, signature, blocks, shared, clusters,
                                      spread, cooperative, dependent);
  made->owner = py::object(owner).release().ptr();
  return made;
}

// A step of a list: (shape, grid, values, [(argument, tensor, offset)], [(argument, tensor, make)]); a value that is
// Ellipsis is an address or a map.
Step step_of(const py::tuple& given) {
  auto kernel = given[0].cast<std::shared_ptr<Shape>>();
  const auto grid = given[1].cast<Triple>();
  const auto values = given[2].cast<py::tuple>();
  const Layout& layout = kernel->layout;
  if (values.size() != layout.slots.size()) {
    throw DriverError(-1, kernel->name + ": expected " + std::to_string(layout.slots.size()) + " arguments, got " +
                              std::to_string(values.size()));
  }
  Step made{kernel, {grid[0], grid[1], grid[2]}, std::vector<char>(layout.size), {}, {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].ptr() != Py_Ellipsis &&
        !pack(layout.slots[i], values[i].ptr(), made.fixed.data(), kernel->name.c_str(), i)) {
      throw py::error_already_set();
    }
  }
  const auto slot = [&](std::uint32_t argument, Kind kind) {
    if (argument >= layout.slots.size() || layout.slots[argument].kind != kind) {
      throw DriverError(-1, kernel->name + ": argument " + std::to_string(argument) + " takes no address or map");
    }
    return argument;
  };
  for (const auto& one : given[3].cast<std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>>()) {
    made.addresses.push_back({slot(std::get<0>(one), Kind::pointer), std::get<1>(one), std::get<2>(one)});
  }
  for (const auto& one : given[4].cast<std::vector<std::tuple<std::uint32_t, std::uint32_t, py::object>>>()) {
    made.maps.push_back(
        {slot(std::get<0>(one), Kind::map), std::get<1>(one), py::object(std::get<2>(one)).release().ptr()});
  }
  return made;
}

py::object launches(const std::vector<py::tuple>& given, std::size_t tensors, const py::object& stream_of, int device) {
  std::vector<Step> steps;
  for (const py::tuple& one : given) {
    steps.push_back(step_of(one));
    for (const FromTensor& from : steps.back().addresses) {
      if (from.tensor >= tensors) {
        throw DriverError(-1, "launches: there is no tensor " + std::to_string(from.tensor));
      }
    }
    for (const MapOfTensor& map : steps.back().maps) {
      if (map.tensor >= tensors) {
        throw DriverError(-1, "launches: there is no tensor " + std::to_string(map.tensor));
      }
    }
  }
  PyObject* made = new_launches(std::move(steps), tensors, stream_of.ptr(), device);
  if (!made) { throw py::error_already_set(); }
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

PYBIND11_MODULE(_launcher, module) {
  module.doc() = "Loads machine code and launches kernels through the driver's library, opened at run time.";
  static py::object error = py::exception<DriverError>(module, "DriverError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) { std::rethrow_exception(raised); }
    } catch (const DriverError& problem) {
      PyErr_SetObject(error.ptr(), py::make_tuple(problem.what(), problem.code).ptr());
    }
  });
  module.attr("LaunchFailed") = py::module_::import("opmux_jit.errors").attr("LaunchFailed");
  module.attr("OutOfMemoryError") = py::module_::import("torch").attr("OutOfMemoryError");
  if (!prepare_arguments() || !prepare_launches(module.ptr())) { throw py::error_already_set(); }
  py::class_<Driver, std::shared_ptr<Driver>>(module, "Driver")
      .def(py::init([](const std::string& vendor, const std::string& library) {
             return std::make_shared<Driver>(vendor == "amd" ? Vendor::hip : Vendor::cuda, library);
           }),
           py::arg("vendor"), py::arg("library"))
      .def_readonly("library", &Driver::library)
      .def("version", &Driver::version);
  py::class_<Shape, std::shared_ptr<Shape>>(module, "Shape");
  module.def("load", &load);
  module.def("unload", &unload);
  module.def("function", &function);
  module.def("global_", &global);
  module.def("get_attribute", &get_attribute);
  module.def("set_attribute", &set_attribute);
  module.def("tensor_map", &tensor_map);
  module.def("shape", &shape);
  module.def("launch", [](std::shared_ptr<Shape> shape) {
    return py::reinterpret_steal<py::object>(new_launch(std::move(shape)));
  });
  module.def("launches", &launches);
}
