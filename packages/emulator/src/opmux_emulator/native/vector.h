// What the tables of vector instructions are written with: rows whose result is an expression of one lane's sources.
#pragma once
#include "operands.h"
#include "tables.h"

// A condition for each lane, into vcc or the scalar pair that VOP3 names; v_cmpx writes exec too.
inline void put_condition(Wave& w, const Inst& i, u64 bits, bool exec_too) {
  u64 exec = w.exec(), und = w.und & exec;
  bits &= exec;
  int d = i.sdst >= 0 ? i.sdst : VCC;
  write_s64(w, i, d, bits, und);
  w.valu_s[d] = w.valu_s[d + 1] = w.slot;
  w.sflag[d] |= 2;
  w.sflag[d + 1] |= 2;
  if (exec_too) {
    write_s64(w, i, EXEC, bits, und);
    w.valu_exec = w.slot;
  }
}

// Rows: the mnemonic, the types of destination D and sources, and the result as an expression of a, b and c; it may
// name the wave w and the instruction i. ROW1 has one source, ROW2 two, ROW3 three; TRANS1 has one and is executed by
// the transcendental unit. ROW has any statement.
#define ROW1(name, D, A, expr) \
  {name, [](Wave& w, const Inst& i) { unary<D, A>(w, i, [&](auto a) { return expr; }); }, VALU, 0}
#define TRANS1(name, D, A, expr) \
  {name, [](Wave& w, const Inst& i) { unary<D, A>(w, i, [&](auto a) { return expr; }); }, TRANS, 0}
#define ROW2(name, D, A, B_, expr) \
  {name, [](Wave& w, const Inst& i) { binary<D, A, B_>(w, i, [&](auto a, auto b) { return expr; }); }, VALU, 0}
#define ROW3(name, D, A, B_, C_, ...)                                                                                \
  {name,                                                                                                             \
   [](Wave& w, const Inst& i) { ternary<D, A, B_, C_>(w, i, [&](auto a, auto b, auto c) { return __VA_ARGS__; }); }, \
   VALU, 0}
#define ROW(name, ...) {name, [](Wave& w, const Inst& i) { __VA_ARGS__; }, VALU, 0}
