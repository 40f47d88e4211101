// Moves between lanes through LDS: swizzle and permute over its crossbar, and reads that transpose.
// CDNA3 ISA, section 11.4 and section 12.13; CDNA4 ISA for the transposed reads.
#include "lds.h"

namespace {
int swizzle_lane(int offset, int l) {  // section 11.4 "DS_SWIZZLE_B32"
  if (offset & 0x8000) return (l & ~3) | (offset >> (2 * (l & 3)) & 3);
  return (l & 32) | (((l & 31 & (offset & 31)) | (offset >> 5 & 31)) ^ (offset >> 10 & 31));
}
// Through the crossbar of LDS, without its memory.
enum Move { SWIZZLE, PERMUTE, BPERMUTE };
void across(Wave& w, const Inst& i, Move move) {
  const u32* a = read_v(w, i, i.src[0]);
  const u32* s = move == SWIZZLE ? a : read_v(w, i, i.src[1]);
  u64 exec = w.exec(), und = 0;
  u64 su = w.vu[i.src[move == SWIZZLE ? 0 : 1] - VGPR];
  u32 r[LANES] = {};
  if (move != SWIZZLE && (w.vu[i.src[0] - VGPR] & exec))
    report(w, i, UNWRITTEN_REGISTER, __builtin_ctzll(w.vu[i.src[0] - VGPR] & exec), i.src[0], 3);
  for (int l = 0; l < LANES; l++) {
    if (move == PERMUTE) {
      if (exec >> l & 1) {
        int to = (a[l] + i.imm) / 4 & 63;
        r[to] = s[l];
        und = (und & ~(1ull << to)) | (su >> l & 1) << to;
      }
      continue;
    }
    int from = move == SWIZZLE ? swizzle_lane(i.imm & 0xffff, l) : (int)((a[l] + i.imm) / 4 & 63);
    if (exec >> from & 1) {
      r[l] = s[from];
      und |= (su >> from & 1) << l;
    }
  }
  u32* d = write_v(w, i, i.dst);
  for (int l = 0; l < LANES; l++)
    if (exec >> l & 1) d[l] = r[l];
  w.vu[i.dst - VGPR] = (w.vu[i.dst - VGPR] & ~exec) | (und & exec);
  issue(w, LDS_OP);
  outstanding_v(w, i.dst, LDS_OP);
}
// What nothing wrote counts as an unwritten value that was stored there: compilers read rows past a narrow tile, whose
// elements they do not use.
void taint_unwritten(Wave& w, const u32* base, u32 offset, u32 bytes) {
  for (int l = 0; l < LANES; l++)
    if (w.exec() >> l & 1)
      for (u32 at = (base[l] + offset) & ~3u; at < base[l] + offset + bytes && at + 4 <= w.g->lds.size(); at += 4) {
        LdsWord& x = w.g->shadow[at / 4];
        if (x.written != 15) {
          x.written = 15;
          x.tainted = 1;
        }
      }
}
// CDNA4 ISA, "LDS transpose": sixteen lanes read sixteen rows of 64 bits and get a column of elements each.
void read_transposed(Wave& w, const Inst& i, int bits) {
  const u32* a = address_of(w, i);
  u32 at[LANES];
  int bytes = bits == 6 ? 12 : 8, n = bytes / 4;
  taint_unwritten(w, a, i.imm, bytes);
  u64 mask = take(w, i, a, i.imm, bytes, false, at), tainted[3] = {};
  int per = bytes * 8 / bits, lanes_a_row = 16 / per;  // rows of 16 elements
  u32 out[3][LANES] = {};
  auto element = [&](int lane, int k) -> u32 {
    if (!(mask >> lane & 1)) return 0;
    u64 lo = 0, hi = 0;
    memcpy(&lo, &w.g->lds[at[lane]], 8);
    if (bytes == 12) memcpy(&hi, &w.g->lds[at[lane] + 8], 4);
    int bit = k * bits;
    unsigned __int128 x = (unsigned __int128)hi << 64 | lo;
    return (u32)(x >> bit) & ((1u << bits) - 1);
  };
  for (int l = 0; l < LANES; l++) {
    // Lane l gets column l & 15 of `per` rows, which lie in lanes of the same sixteen.
    int block = l & ~15, column = l & 15;
    unsigned __int128 x = 0;
    for (int k = 0; k < per; k++) {
      int from = block + k * lanes_a_row + column / per;
      x |= (unsigned __int128)element(from, column % per) << (k * bits);
      if (mask >> from & 1 && w.g->shadow[(at[from] + column % per * bits / 8) / 4].tainted)
        for (int d = k * bits / 32; d <= ((k + 1) * bits - 1) / 32; d++) tainted[d] |= 1ull << l;
    }
    for (int k = 0; k < n; k++) out[k][l] = (u32)(x >> (32 * k));
  }
  for (int k = 0; k < n; k++) {
    u32* d = write_v(w, i, i.dst + k);
    for (int l = 0; l < LANES; l++)
      if (w.exec() >> l & 1) d[l] = out[k][l];
  }
  issue(w, LDS_OP);
  lds_note(w, LDS_OP, false, bytes, mask, at);
  finish_read(w, i, n);
  for (int k = 0; k < n; k++) w.vu[i.dst - VGPR + k] |= tainted[k] & w.exec();
}
void nop(Wave&, const Inst&) {}
}  // namespace

std::vector<Op> lds_lane_ops() {
  return {
      D("ds_swizzle_b32", across(w, i, SWIZZLE)),         D("ds_permute_b32", across(w, i, PERMUTE)),
      D("ds_bpermute_b32", across(w, i, BPERMUTE)),       {"ds_nop", nop, DSOP, 0},
      D("ds_read_b64_tr_b16", read_transposed(w, i, 16)), D("ds_read_b64_tr_b8", read_transposed(w, i, 8)),
      D("ds_read_b64_tr_b4", read_transposed(w, i, 4)),   D("ds_read_b96_tr_b6", read_transposed(w, i, 6)),
  };
}
