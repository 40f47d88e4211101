// Scalar arithmetic: SOP1, SOP2, SOPC and SOPK. CDNA3 ISA, chapter 5, sections 12.1 to 12.4.
#include "scalar.h"

namespace {
void mov32(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u);
  put32(w, i, a, u);
}
void mov64(Wave& w, const Inst& i) {
  u64 u = 0, a = source64(w, i, 0, u);
  put64s(w, i, a, u);
}
void cmov32(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u);
  if (w.scc) put32(w, i, a, u);
}
void cmov64(Wave& w, const Inst& i) {
  u64 u = 0, a = source64(w, i, 0, u);
  if (w.scc) put64s(w, i, a, u);
}
void cmovk(Wave& w, const Inst& i) {
  if (w.scc) put32(w, i, (u32)i.imm, 0);
}
void not64(Wave& w, const Inst& i) {
  u64 u = 0, a = source64(w, i, 0, u);
  put64s(w, i, ~a, u);
  set_scc(w, ~a != 0, u);
}
// From 64 bits to 32.
template <class F>
void narrow(Wave& w, const Inst& i, bool scc, F f) {
  u64 u = 0, a = source64(w, i, 0, u);
  u32 r = f(a);
  put32(w, i, r, (u32)all(u));
  if (scc) set_scc(w, r != 0, u);
}
void addc(Wave& w, const Inst& i) {
  u32 u = w.sccu, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  u64 r = (u64)a + b + w.scc;
  put32(w, i, (u32)r, all(u));
  set_scc(w, r >> 32, u);
}
void subb(Wave& w, const Inst& i) {
  u32 u = w.sccu, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  u64 r = (u64)a - b - w.scc;
  put32(w, i, (u32)r, all(u));
  set_scc(w, r >> 32 & 1, u);
}
// With a constant of the instruction; the destination is the other source.
void addk(Wave& w, const Inst& i) {
  touch_s(w, i, i.dst);
  u32 a = w.s[i.dst], b = (u32)i.imm, u = w.su[i.dst];
  put32(w, i, a + b, all(u));
  set_scc(w, (~(a ^ b) & (a ^ (a + b))) >> 31, u);
}
void mulk(Wave& w, const Inst& i) {
  touch_s(w, i, i.dst);
  put32(w, i, w.s[i.dst] * (u32)i.imm, all(w.su[i.dst]));
}
template <class F>
void one32(Wave& w, const Inst& i, bool scc, F f) {
  u32 u = 0, a = source32(w, i, 0, u), r = f(a);
  put32(w, i, r, all(u));
  if (scc) set_scc(w, r != 0, u);
}
template <class F>
void one64(Wave& w, const Inst& i, bool scc, F f) {
  u64 u = 0, a = source64(w, i, 0, u), r = f(a);
  put64s(w, i, r, all(u));
  if (scc) set_scc(w, r != 0, u);
}
// f sets `carry`, which becomes SCC where scc is true.
template <class F>
void two32(Wave& w, const Inst& i, bool scc, F f) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  bool carry = false;
  u32 r = f(a, b, carry);
  put32(w, i, r, all(u));
  if (scc) set_scc(w, carry, u);
}
enum Logic { AND, OR, XOR, ANDN2, ORN2, NAND, NOR, XNOR };
template <class T>
T logic(Logic l, T a, T b, T ua, T ub, T& und) {
  T nb = l == ANDN2 || l == ORN2 ? ~b : b, r;
  switch (l) {
    case AND:
    case ANDN2:
    case NAND:
      r = a & nb;
      und = (ua | ub) & (ua | a) & (ub | nb);
      break;  // a known zero decides
    case OR:
    case ORN2:
    case NOR:
      r = a | nb;
      und = (ua | ub) & (ua | ~a) & (ub | ~nb);
      break;
    default: r = a ^ b; und = ua | ub;
  }
  return l == NAND || l == NOR || l == XNOR ? ~r : r;
}
template <Logic L>
void logic32(Wave& w, const Inst& i) {
  u32 ua = 0, ub = 0, u, a = source32(w, i, 0, ua), b = source32(w, i, 1, ub), r = logic<u32>(L, a, b, ua, ub, u);
  put32(w, i, r, u);
  set_scc(w, r != 0, u && !(r & ~u));
}
template <Logic L>
void logic64(Wave& w, const Inst& i) {
  u64 ua = 0, ub = 0, u, a = source64(w, i, 0, ua), b = source64(w, i, 1, ub), r = logic<u64>(L, a, b, ua, ub, u);
  put64s(w, i, r, u);
  set_scc(w, r != 0, u && !(r & ~u));
}
template <Logic L>
void saveexec(Wave& w, const Inst& i) {
  u64 ua = 0, u, a = source64(w, i, 0, ua), e = w.exec(), r = logic<u64>(L, a, e, ua, 0, u);
  put64s(w, i, e, 0);
  write_s64(w, i, EXEC, r, u);
  set_scc(w, r != 0, u);
}
void andn1_saveexec(Wave& w, const Inst& i, bool orn) {
  u64 ua = 0, a = source64(w, i, 0, ua), e = w.exec(), r = orn ? ~a | e : ~a & e;
  put64s(w, i, e, 0);
  write_s64(w, i, EXEC, r, ua);
  set_scc(w, r != 0, ua);
}
template <class F>
void compare(Wave& w, const Inst& i, F f) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  set_scc(w, f(a, b), u);
}
template <class F>
void compare64(Wave& w, const Inst& i, F f) {
  u64 u = 0, a = source64(w, i, 0, u), b = source64(w, i, 1, u);
  set_scc(w, f(a, b), u);
}
template <class F>
void comparek(Wave& w, const Inst& i, F f) {
  touch_s(w, i, i.dst);
  set_scc(w, f(w.s[i.dst], i.imm), w.su[i.dst]);
}
template <class F>
void shift64(Wave& w, const Inst& i, F f) {
  u64 u = 0, a = source64(w, i, 0, u);
  u32 ub = 0, b = source32(w, i, 1, ub);
  u64 r = f(a, b & 63);
  put64s(w, i, r, all(u | ub));
  set_scc(w, r != 0, u | ub);
}
void cselect32(Wave& w, const Inst& i) {
  u32 ua = 0, ub = 0, a = source32(w, i, 0, ua), b = source32(w, i, 1, ub);
  put32(w, i, w.scc ? a : b, (w.scc ? ua : ub) | w.sccu);
}
void cselect64(Wave& w, const Inst& i) {
  u64 ua = 0, ub = 0, a = source64(w, i, 0, ua), b = source64(w, i, 1, ub);
  put64s(w, i, w.scc ? a : b, (w.scc ? ua : ub) | all((u64)w.sccu));
}
void bitset(Wave& w, const Inst& i, bool on) {
  u32 u = 0, a = source32(w, i, 0, u) & 31;
  touch_s(w, i, i.dst);
  put32(w, i, on ? w.s[i.dst] | 1u << a : w.s[i.dst] & ~(1u << a), w.su[i.dst] | all(u));
}
u32 extract(u32 a, u32 b, bool is_signed) {
  u32 offset = b & 31, width = b >> 16 & 127;
  if (!width) return 0;
  if (width > 32 - offset) width = 32 - offset;
  u32 r = a >> offset;
  if (width < 32) r &= (1u << width) - 1;
  return is_signed && width < 32 && (r >> (width - 1) & 1) ? r | ~0u << width : r;
}
u64 extract64(u64 a, u32 b, bool is_signed) {
  u32 offset = b & 63, width = b >> 16 & 127;
  if (!width) return 0;
  if (width > 64 - offset) width = 64 - offset;
  u64 r = a >> offset;
  if (width < 64) r &= (1ull << width) - 1;
  return is_signed && width < 64 && (r >> (width - 1) & 1) ? r | ~0ull << width : r;
}
void bfe64(Wave& w, const Inst& i, bool is_signed) {
  u64 u = 0, a = source64(w, i, 0, u);
  u32 ub = 0, b = source32(w, i, 1, ub);
  u64 r = extract64(a, b, is_signed);
  put64s(w, i, r, all(u | ub));
  set_scc(w, r != 0, u | ub);
}
void bfm64(Wave& w, const Inst& i) {
  u32 u = 0, a = source32(w, i, 0, u), b = source32(w, i, 1, u);
  put64s(w, i, ((1ull << (a & 63)) - 1) << (b & 63), u ? ~0ull : 0);
}
u32 sign_bits(u32 a) { return a == 0 || a == ~0u ? ~0u : (u32)__builtin_clz((i32)a < 0 ? ~a : a); }
u32 brev(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
  return r;
}
u64 brev64(u64 x) { return (u64)brev((u32)x) << 32 | brev(x >> 32); }
u32 wqm(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k += 4)
    if (x >> k & 15) r |= 15u << k;
  return r;
}
}  // namespace

// Two sources of 32 bits, a and b; the expression may set c, which becomes SCC where scc is true.
#define K32(name, scc, expr) \
  S(name, SALU, two32(w, i, scc, [](u32 a, u32 b, [[maybe_unused]] bool& c) -> u32 { return expr; }))
#define L(base, l)                                                                  \
  {"s_" base "_b32", logic32<l>, SALU, 0}, {"s_" base "_b64", logic64<l>, SALU, 0}, \
      {"s_" base "_saveexec_b64", saveexec<l>, SALU, 0}
#define CMP(name, T, op) S("s_cmp_" name, SALU, compare(w, i, [](u32 a, u32 b) { return (T)a op(T) b; }))
#define CMPK(name, T, V, op) S("s_cmpk_" name, SALU, comparek(w, i, [](u32 a, i32 b) { return (T)a op(T)(V) b; }))

std::vector<Op> scalar_ops() {
  return {
      {"s_mov_b32", mov32, SALU, 0},
      {"s_mov_b64", mov64, SALU, 0},
      {"s_cmov_b32", cmov32, SALU, 0},
      {"s_cmov_b64", cmov64, SALU, 0},
      S("s_movk_i32", SALU, put32(w, i, (u32)i.imm, 0)),
      {"s_cmovk_i32", cmovk, SALU, 0},
      S("s_not_b32", SALU, one32(w, i, true, [](u32 a) { return ~a; })),
      {"s_not_b64", not64, SALU, 0},
      S("s_wqm_b32", SALU, one32(w, i, true, wqm)),
      S("s_wqm_b64", SALU, one64(w, i, true, [](u64 a) { return (u64)wqm(a >> 32) << 32 | wqm((u32)a); })),
      S("s_brev_b32", SALU, one32(w, i, false, brev)),
      S("s_brev_b64", SALU, one64(w, i, false, brev64)),
      S("s_bcnt0_i32_b32", SALU, one32(w, i, true, [](u32 a) { return (u32)__builtin_popcount(~a); })),
      S("s_bcnt1_i32_b32", SALU, one32(w, i, true, [](u32 a) { return (u32)__builtin_popcount(a); })),
      S("s_bcnt0_i32_b64", SALU, narrow(w, i, true, [](u64 a) { return (u32)__builtin_popcountll(~a); })),
      S("s_bcnt1_i32_b64", SALU, narrow(w, i, true, [](u64 a) { return (u32)__builtin_popcountll(a); })),
      S("s_ff0_i32_b32", SALU, one32(w, i, false, [](u32 a) { return ~a ? (u32)__builtin_ctz(~a) : ~0u; })),
      S("s_ff1_i32_b32", SALU, one32(w, i, false, [](u32 a) { return a ? (u32)__builtin_ctz(a) : ~0u; })),
      S("s_ff0_i32_b64", SALU, narrow(w, i, false, [](u64 a) { return ~a ? (u32)__builtin_ctzll(~a) : ~0u; })),
      S("s_ff1_i32_b64", SALU, narrow(w, i, false, [](u64 a) { return a ? (u32)__builtin_ctzll(a) : ~0u; })),
      S("s_flbit_i32_b32", SALU, one32(w, i, false, [](u32 a) { return a ? (u32)__builtin_clz(a) : ~0u; })),
      S("s_flbit_i32", SALU, one32(w, i, false, sign_bits)),
      S("s_flbit_i32_b64", SALU, narrow(w, i, false, [](u64 a) { return a ? (u32)__builtin_clzll(a) : ~0u; })),
      S("s_sext_i32_i8", SALU, one32(w, i, false, [](u32 a) { return (u32)(i32)(i8)a; })),
      S("s_sext_i32_i16", SALU, one32(w, i, false, [](u32 a) { return (u32)(i32)(i16)a; })),
      S("s_bitset0_b32", SALU, bitset(w, i, false)),
      S("s_bitset1_b32", SALU, bitset(w, i, true)),
      S("s_abs_i32", SALU, one32(w, i, true, [](u32 a) { return (i32)a < 0 ? 0u - a : a; })),
      L("and", AND),
      L("or", OR),
      L("xor", XOR),
      L("andn2", ANDN2),
      L("orn2", ORN2),
      L("nand", NAND),
      L("nor", NOR),
      L("xnor", XNOR),
      S("s_andn1_saveexec_b64", SALU, andn1_saveexec(w, i, false)),
      S("s_orn1_saveexec_b64", SALU, andn1_saveexec(w, i, true)),
      K32("s_add_u32", true, (c = (u64)a + b >> 32, a + b)),
      K32("s_sub_u32", true, (c = b > a, a - b)),
      K32("s_add_i32", true, (c = ((~(a ^ b) & (a ^ (a + b))) >> 31), a + b)),
      K32("s_sub_i32", true, (c = (((a ^ b) & (a ^ (a - b))) >> 31), a - b)),
      {"s_addc_u32", addc, SALU, 0},
      {"s_subb_u32", subb, SALU, 0},
      K32("s_min_i32", true, (c = (i32)a < (i32)b, c ? a : b)),
      K32("s_min_u32", true, (c = a < b, c ? a : b)),
      K32("s_max_i32", true, (c = (i32)a > (i32)b, c ? a : b)),
      K32("s_max_u32", true, (c = a > b, c ? a : b)),
      {"s_cselect_b32", cselect32, SALU, 0},
      {"s_cselect_b64", cselect64, SALU, 0},
      K32("s_lshl_b32", true, (c = (a << (b & 31)) != 0, a << (b & 31))),
      K32("s_lshr_b32", true, (c = (a >> (b & 31)) != 0, a >> (b & 31))),
      K32("s_ashr_i32", true, (c = ((i32)a >> (b & 31)) != 0, (u32)((i32)a >> (b & 31)))),
      S("s_lshl_b64", SALU, shift64(w, i, [](u64 a, u32 b) { return a << b; })),
      S("s_lshr_b64", SALU, shift64(w, i, [](u64 a, u32 b) { return a >> b; })),
      S("s_ashr_i64", SALU, shift64(w, i, [](u64 a, u32 b) { return (u64)((i64)a >> b); })),
      K32("s_bfm_b32", false, ((1u << (a & 31)) - 1) << (b & 31)),
      {"s_bfm_b64", bfm64, SALU, 0},
      K32("s_mul_i32", false, a * b),
      K32("s_mul_hi_u32", false, (u32)((u64)a * b >> 32)),
      K32("s_mul_hi_i32", false, (u32)((i64)(i32)a * (i32)b >> 32)),
      K32("s_bfe_u32", true, (c = extract(a, b, false) != 0, extract(a, b, false))),
      K32("s_bfe_i32", true, (c = extract(a, b, true) != 0, extract(a, b, true))),
      S("s_bfe_u64", SALU, bfe64(w, i, false)),
      S("s_bfe_i64", SALU, bfe64(w, i, true)),
      K32("s_absdiff_i32", true, (c = a != b, (i32)a > (i32)b ? a - b : b - a)),
      K32("s_lshl1_add_u32", true, (c = ((u64)a << 1) + b >> 32, (a << 1) + b)),
      K32("s_lshl2_add_u32", true, (c = ((u64)a << 2) + b >> 32, (a << 2) + b)),
      K32("s_lshl3_add_u32", true, (c = ((u64)a << 3) + b >> 32, (a << 3) + b)),
      K32("s_lshl4_add_u32", true, (c = ((u64)a << 4) + b >> 32, (a << 4) + b)),
      K32("s_pack_ll_b32_b16", false, (a & 0xffff) | b << 16),
      K32("s_pack_lh_b32_b16", false, (a & 0xffff) | (b & 0xffff0000)),
      K32("s_pack_hh_b32_b16", false, a >> 16 | (b & 0xffff0000)),
      {"s_addk_i32", addk, SALU, 0},
      {"s_mulk_i32", mulk, SALU, 0},
      CMP("eq_i32", i32, ==),
      CMP("lg_i32", i32, !=),
      CMP("gt_i32", i32, >),
      CMP("ge_i32", i32, >=),
      CMP("lt_i32", i32, <),
      CMP("le_i32", i32, <=),
      CMP("eq_u32", u32, ==),
      CMP("lg_u32", u32, !=),
      CMP("gt_u32", u32, >),
      CMP("ge_u32", u32, >=),
      CMP("lt_u32", u32, <),
      CMP("le_u32", u32, <=),
      S("s_cmp_eq_u64", SALU, compare64(w, i, [](u64 a, u64 b) { return a == b; })),
      S("s_cmp_lg_u64", SALU, compare64(w, i, [](u64 a, u64 b) { return a != b; })),
      S("s_bitcmp0_b32", SALU, compare(w, i, [](u32 a, u32 b) { return !(a >> (b & 31) & 1); })),
      S("s_bitcmp1_b32", SALU, compare(w, i, [](u32 a, u32 b) { return (bool)(a >> (b & 31) & 1); })),
      CMPK("eq_i32", i32, i32, ==),
      CMPK("lg_i32", i32, i32, !=),
      CMPK("gt_i32", i32, i32, >),
      CMPK("ge_i32", i32, i32, >=),
      CMPK("lt_i32", i32, i32, <),
      CMPK("le_i32", i32, i32, <=),
      CMPK("eq_u32", u32, u16, ==),
      CMPK("lg_u32", u32, u16, !=),
      CMPK("gt_u32", u32, u16, >),
      CMPK("ge_u32", u32, u16, >=),
      CMPK("lt_u32", u32, u16, <),
      CMPK("le_u32", u32, u16, <=),
  };
}
