// Vector instructions from operand to result: a function of one lane's sources is applied in all lanes.
#pragma once
#include "destinations.h"
#include "sources.h"

inline void start(Wave& w, const Inst& i) {
  w.und = 0;
  w.mask = w.exec();
}

#define BUFFER(T, name) alignas(64) typename Source<T>::type name##_buffer[LANES]
#define FETCH(T, name, k) \
  BUFFER(T, name);        \
  auto name = Source<T>::get(w, i, k, name##_buffer)

template <class D, class A, class F>
inline void unary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l]);
  Destination<D>::put(w, i, r);
}
template <class D, class A, class B, class F>
inline void binary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  FETCH(B, b, 1);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l], b[l]);
  Destination<D>::put(w, i, r);
}
template <class D, class A, class B, class C, class F>
inline void ternary(Wave& w, const Inst& i, F f) {
  start(w, i);
  FETCH(A, a, 0);
  FETCH(B, b, 1);
  FETCH(C, c, 2);
  alignas(64) typename Destination<D>::type r[LANES];
  for (int l = 0; l < LANES; l++) r[l] = f(a[l], b[l], c[l]);
  Destination<D>::put(w, i, r);
}
