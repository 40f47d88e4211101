// Lists of launches that are made together, again and again, with other tensors of the same shapes.
#include "launch.h"

#include <structmember.h>

#include <array>
#include <cstring>
#include <unordered_map>

namespace opmux {

namespace {

using Map = std::array<char, map_size>;

constexpr std::size_t most_maps = 1024;  // kept for each descriptor
constexpr std::size_t most_tensors = 64;

struct List {
  std::vector<Step> steps;
  std::vector<std::unordered_map<std::uint64_t, Map>> maps;  // of each descriptor of each step, in order
  std::size_t tensors;
  PyObject* stream_of;  // owned
  PyObject* device;     // owned
  ~List() {
    for (Step& step : steps) {
      for (MapOfTensor& map : step.maps) { Py_XDECREF(map.make); }
    }
    Py_XDECREF(stream_of);
    Py_XDECREF(device);
  }
};

struct ListObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  List* list;
};

// The map of a tensor at an address: kept, or made by the callable.
bool fill_map(std::unordered_map<std::uint64_t, Map>& kept, PyObject* make, PyObject* tensor, std::uint64_t address,
              char* target) {
  auto found = kept.find(address);
  if (found == kept.end()) {
    PyObject* made = PyObject_CallOneArg(make, tensor);
    if (!made) { return false; }
    if (!PyBytes_Check(made) || PyBytes_GET_SIZE(made) != static_cast<Py_ssize_t>(map_size)) {
      PyErr_Format(PyExc_TypeError, "a tensor map has 128 bytes, got %R", made);
      Py_DECREF(made);
      return false;
    }
    if (kept.size() >= most_maps) { kept.clear(); }
    Map map;
    std::memcpy(map.data(), PyBytes_AS_STRING(made), map_size);
    Py_DECREF(made);
    found = kept.emplace(address, map).first;
  }
  std::memcpy(target, found->second.data(), map_size);
  return true;
}

PyObject* call_list(PyObject* self, PyObject* const* given, std::size_t flagged, PyObject* names) {
  List& list = *reinterpret_cast<ListObject*>(self)->list;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  if (count != static_cast<Py_ssize_t>(list.tensors) || (names && PyTuple_GET_SIZE(names))) {
    return PyErr_Format(PyExc_TypeError, "launches: expected %zd tensors, got %zd values",
                        static_cast<Py_ssize_t>(list.tensors), count);
  }
  std::uint64_t addresses[most_tensors];
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!address_of(given[i], &addresses[i])) {
      return PyErr_Occurred() ? nullptr
                              : PyErr_Format(PyExc_TypeError, "launches: expected a tensor, got %R", given[i]);
    }
    if (addresses[i] & 15) { Py_RETURN_FALSE; }
  }
  PyObject* stream_found = PyObject_CallOneArg(list.stream_of, list.device);
  if (!stream_found) { return nullptr; }
  std::uint64_t stream;
  const bool known = address_of(stream_found, &stream);
  Py_DECREF(stream_found);
  if (!known) {
    return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_TypeError, "launches: the stream is no address");
  }
  std::size_t number = 0;
  for (const Step& step : list.steps) {
    Block block;
    std::memcpy(block.bytes, step.fixed.data(), step.fixed.size());
    const Layout& layout = step.shape->layout;
    for (const FromTensor& from : step.addresses) {
      const std::uint64_t address = addresses[from.tensor] + from.offset;
      std::memcpy(block.bytes + layout.slots[from.argument].offset, &address, sizeof address);
    }
    for (const MapOfTensor& map : step.maps) {
      if (!fill_map(list.maps[number++], map.make, given[map.tensor], addresses[map.tensor],
                    block.bytes + layout.slots[map.argument].offset)) {
        return nullptr;
      }
    }
    const int code = step.shape->run(step.grid, reinterpret_cast<void*>(stream), block.bytes);
    if (code) {
      step.shape->fail(code, step.grid);
      return nullptr;
    }
  }
  Py_RETURN_TRUE;
}

void free_list(PyObject* self) {
  delete reinterpret_cast<ListObject*>(self)->list;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef list_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ListObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot list_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_list)},
    {Py_tp_members, list_members},
    {0, nullptr},
};
PyType_Spec list_spec = {
    "opmux_jit.Launches",
    sizeof(ListObject),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    list_slots,
};
PyTypeObject* list_type = nullptr;

}  // namespace

PyObject* new_launches(std::vector<Step> steps, std::size_t tensors, PyObject* stream_of, int device) {
  if (tensors > most_tensors) {
    return PyErr_Format(PyExc_ValueError, "launches: at most %zu tensors are taken, got %zu", most_tensors, tensors);
  }
  auto* made = reinterpret_cast<ListObject*>(list_type->tp_alloc(list_type, 0));
  if (!made) { return nullptr; }
  made->vectorcall = call_list;
  made->list = new List{};
  made->list->tensors = tensors;
  made->list->stream_of = Py_NewRef(stream_of);
  made->list->device = PyLong_FromLong(device);
  made->list->steps = std::move(steps);
  std::size_t maps = 0;
  for (const Step& step : made->list->steps) { maps += step.maps.size(); }
  made->list->maps.resize(maps);
  return reinterpret_cast<PyObject*>(made);
}

bool prepare_lists() {
  list_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&list_spec));
  return list_type != nullptr;
}

}  // namespace opmux
