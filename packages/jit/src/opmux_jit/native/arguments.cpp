#include "arguments.h"

#include <cstring>
#include <limits>

namespace opmux {

namespace {

PyObject* data_ptr_name = nullptr;

struct KindFacts {
  char letter;
  Kind kind;
  std::uint32_t size;
  const char* name;
};

constexpr KindFacts facts[] = {
    {'p', Kind::pointer, 8, "a pointer"}, {'b', Kind::i8, 1, "int8"},     {'h', Kind::i16, 2, "int16"},
    {'i', Kind::i32, 4, "int32"},         {'q', Kind::i64, 8, "int64"},   {'B', Kind::u8, 1, "uint8"},
    {'H', Kind::u16, 2, "uint16"},        {'I', Kind::u32, 4, "uint32"},  {'Q', Kind::u64, 8, "uint64"},
    {'?', Kind::boolean, 1, "bool"},      {'e', Kind::f16, 2, "float16"}, {'E', Kind::bf16, 2, "bfloat16"},
    {'f', Kind::f32, 4, "float32"},       {'d', Kind::f64, 8, "float64"}, {'m', Kind::map, map_size, "a tensor map"},
};

const KindFacts& facts_of(Kind kind) { return facts[static_cast<int>(kind)]; }

template <class Integer>
bool pack_integer(PyObject* value, char* target) {
  if (!PyLong_Check(value)) { return false; }
  Integer found;
  if constexpr (std::numeric_limits<Integer>::is_signed) {
    int overflow = 0;
    const long long wide = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || wide < std::numeric_limits<Integer>::min() || wide > std::numeric_limits<Integer>::max()) {
      return false;
    }
    found = static_cast<Integer>(wide);
  } else {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(value);
    if ((wide == ~0ull && PyErr_Occurred()) || wide > std::numeric_limits<Integer>::max()) {
      PyErr_Clear();
      return false;
    }
    found = static_cast<Integer>(wide);
  }
  std::memcpy(target, &found, sizeof found);
  return true;
}

bool real(PyObject* value, double* found) {
  if (PyFloat_CheckExact(value)) {
    *found = PyFloat_AS_DOUBLE(value);
    return true;
  }
  if (!PyFloat_Check(value) && !PyLong_Check(value)) { return false; }
  *found = PyFloat_AsDouble(value);
  if (*found == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

// Rounds to the nearest, to even where two are as near; NaN stays NaN.
std::uint16_t to_bfloat16(double value) {
  const float single = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  if (single != single) { return static_cast<std::uint16_t>((bits >> 16) | 0x40); }
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

bool pack_real(Kind kind, PyObject* value, char* target) {
  double found;
  if (!real(value, &found)) { return false; }
  if (kind == Kind::f64) {
    std::memcpy(target, &found, 8);
  } else if (kind == Kind::f32) {
    const float single = static_cast<float>(found);
    std::memcpy(target, &single, 4);
  } else if (kind == Kind::bf16) {
    const std::uint16_t bits = to_bfloat16(found);
    std::memcpy(target, &bits, 2);
  } else if (PyFloat_Pack2(found, target, 1)) {
    PyErr_Clear();  // too large for a float16
    return false;
  }
  return true;
}

bool pack_map(PyObject* value, char* target) {
  if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) != static_cast<Py_ssize_t>(map_size)) { return false; }
  std::memcpy(target, PyBytes_AS_STRING(value), map_size);
  return true;
}

bool packed(Kind kind, PyObject* value, char* target) {
  switch (kind) {
    case Kind::pointer: {
      std::uint64_t address;
      if (!address_of(value, &address)) { return false; }
      std::memcpy(target, &address, 8);
      return true;
    }
    case Kind::i8: return pack_integer<std::int8_t>(value, target);
    case Kind::i16: return pack_integer<std::int16_t>(value, target);
    case Kind::i32: return pack_integer<std::int32_t>(value, target);
    case Kind::i64: return pack_integer<std::int64_t>(value, target);
    case Kind::u8: return pack_integer<std::uint8_t>(value, target);
    case Kind::u16: return pack_integer<std::uint16_t>(value, target);
    case Kind::u32: return pack_integer<std::uint32_t>(value, target);
    case Kind::u64: return pack_integer<std::uint64_t>(value, target);
    case Kind::boolean:
      if (!PyBool_Check(value)) { return false; }
      *target = value == Py_True;
      return true;
    case Kind::map: return pack_map(value, target);
    default: return pack_real(kind, value, target);
  }
}

}  // namespace

bool prepare_arguments() {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  return data_ptr_name != nullptr;
}

Layout::Layout(const std::string& signature) {
  for (char letter : signature) {
    const KindFacts* found = nullptr;
    for (const KindFacts& one : facts) {
      if (one.letter == letter) { found = &one; }
    }
    if (!found) { throw DriverError(-1, std::string("signature: '") + letter + "' is no kind of argument"); }
    const std::uint32_t alignment = found->kind == Kind::map ? map_alignment : found->size;
    size = (size + alignment - 1) / alignment * alignment;
    slots.push_back({found->kind, size});
    size += found->size;
  }
}

bool address_of(PyObject* value, std::uint64_t* address) {
  if (value == Py_None) {
    *address = 0;
    return true;
  }
  if (PyLong_Check(value)) {
    *address = PyLong_AsUnsignedLongLong(value);
    if (*address == ~0ull && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    return true;
  }
  PyObject* found = PyObject_VectorcallMethod(data_ptr_name, &value, 1, nullptr);
  if (!found) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Clear();  // not a tensor: the caller says what was expected
    }
    return false;
  }
  *address = PyLong_AsUnsignedLongLong(found);
  Py_DECREF(found);
  return !(*address == ~0ull && PyErr_Occurred());
}

bool pack(const Slot& slot, PyObject* value, char* block, const char* kernel, Py_ssize_t place) {
  if (packed(slot.kind, value, block + slot.offset)) { return true; }
  if (!PyErr_Occurred()) {
    const char* more = slot.kind == Kind::pointer ? " (a tensor, an address or None)"
                       : slot.kind == Kind::map   ? " (128 bytes, as tensor_map returns)"
                                                  : " that holds the value";
    PyErr_Format(PyExc_TypeError, "%s: argument %zd expected %s%s, got %R", kernel, place, facts_of(slot.kind).name,
                 more, value);
  }
  return false;
}

}  // namespace opmux
