// scaled_linear_blocks for gfx950, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
.amdhsa_code_object_version 5

// y = x @ w.T + bias, x and w fp8, y bf16; a workgroup's tile is 64 rows of x by 64 of w,
// of which each of two buffers of LDS holds 128 bytes. Grid: tiles of n, tiles of m.
// Arguments: x p at 0, w p at 8, bias p at 16, y p at 24, x_scale p at 32, w_scale p at 40, m I at 48, n I at 52, k I at 56, x_stride I at 60, w_stride I at 64, bias_bytes I at 68, x_scale_row I at 72, x_scale_block I at 76, w_scale_row I at 80, w_scale_block I at 84
.text
.globl scaled_linear_blocks_fp8_64x64
.p2align 8
.type scaled_linear_blocks_fp8_64x64,@function
scaled_linear_blocks_fp8_64x64:
  .set s_kernarg, 0
  .set s_group, 2
  .set v_thread, 0
  .set s_arguments, 4
  s_load_dwordx16 s[s_arguments:s_arguments+15], s[s_kernarg:s_kernarg+1], 0
  s_load_dwordx4 s[s_arguments+16:s_arguments+19], s[s_kernarg:s_kernarg+1], 64
  s_load_dwordx2 s[s_arguments+20:s_arguments+21], s[s_kernarg:s_kernarg+1], 0x50
  s_waitcnt lgkmcnt(0)
  .set s_x, 4
  .set s_w, 6
  .set s_bias, 8
  .set s_y, 10
  .set s_x_scale, 12
  .set s_w_scale, 14
  .set s_m, 16
  .set s_n, 17
  .set s_k, 18
  .set s_x_stride, 19
  .set s_w_stride, 20
  .set s_bias_bytes, 21
  .set s_x_scale_row, 22
  .set s_x_scale_block, 23
  .set s_w_scale_row, 24
  .set s_w_scale_block, 25

  // Buffers of the tiles' rows; those past the last one read as 0
  .set s_k_bytes, 28
  s_mul_i32 s[s_k_bytes], s[s_k], 1
  .set s_n_first, 29
  .set s_m_first, 30
  s_mul_i32 s[s_n_first], s[s_group], 64
  s_mul_i32 s[s_m_first], s[s_group+1], 64
  .set s_x_rows, 32
  .set s_left, 31
  s_sub_u32 s[s_left], s[s_m], s[s_m_first]
  s_min_u32 s[s_left], s[s_left], 64
  s_sub_u32 s[s_left], s[s_left], 1
  s_mul_i32 s[s_left], s[s_left], s[s_x_stride]
  s_add_u32 s[s_x_rows+2], s[s_left], s[s_k_bytes]
  s_mul_i32 s[s_x_rows], s[s_m_first], s[s_x_stride]
  s_mul_hi_u32 s[s_x_rows+1], s[s_m_first], s[s_x_stride]
  s_add_u32 s[s_x_rows], s[s_x_rows], s[s_x]
  s_addc_u32 s[s_x_rows+1], s[s_x_rows+1], s[s_x+1]
  s_and_b32 s[s_x_rows+1], s[s_x_rows+1], 0xffff
  s_mov_b32 s[s_x_rows+3], 0x27000
  .set s_w_rows, 36
  .set s_left, 31
  s_sub_u32 s[s_left], s[s_n], s[s_n_first]
  s_min_u32 s[s_left], s[s_left], 64
  s_sub_u32 s[s_left], s[s_left], 1
  s_mul_i32 s[s_left], s[s_left], s[s_w_stride]
  s_add_u32 s[s_w_rows+2], s[s_left], s[s_k_bytes]
  s_mul_i32 s[s_w_rows], s[s_n_first], s[s_w_stride]
  s_mul_hi_u32 s[s_w_rows+1], s[s_n_first], s[s_w_stride]
  s_add_u32 s[s_w_rows], s[s_w_rows], s[s_w]
  s_addc_u32 s[s_w_rows+1], s[s_w_rows+1], s[s_w+1]
  s_and_b32 s[s_w_rows+1], s[s_w_rows+1], 0xffff
  s_mov_b32 s[s_w_rows+3], 0x27000

  // The chunk that a thread loads, and where in LDS it goes
  .set v_x_at, 2
  .set v_w_at, 4
  .set v_row, 1
  .set v_chunk, 6
  .set v_swizzle, 7
  v_lshrrev_b32 v[v_row], 3, v[v_thread]
  v_and_b32 v[v_chunk], 7, v[v_thread]
  v_bfe_u32 v[v_swizzle], v[v_row], 1, 3
  v_xor_b32 v[v_chunk], v[v_swizzle], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_add_u32 v[v_x_at], 0, v[v_row]
  v_mul_lo_u32 v[v_x_at], v[v_x_at], s[s_x_stride]
  v_add_u32 v[v_x_at], v[v_x_at], v[v_chunk]
  v_add_u32 v[v_x_at+1], 32, v[v_row]
  v_mul_lo_u32 v[v_x_at+1], v[v_x_at+1], s[s_x_stride]
  v_add_u32 v[v_x_at+1], v[v_x_at+1], v[v_chunk]
  v_add_u32 v[v_w_at], 0, v[v_row]
  v_mul_lo_u32 v[v_w_at], v[v_w_at], s[s_w_stride]
  v_add_u32 v[v_w_at], v[v_w_at], v[v_chunk]
  v_add_u32 v[v_w_at+1], 32, v[v_row]
  v_mul_lo_u32 v[v_w_at+1], v[v_w_at+1], s[s_w_stride]
  v_add_u32 v[v_w_at+1], v[v_w_at+1], v[v_chunk]

  // The chunks that a lane reads of LDS: its row's, swizzled, of both tiles
  .set v_lane, 1
  .set v_upper, 6
  .set s_wave, 31
  v_and_b32 v[v_lane], 31, v[v_thread]
  v_bfe_u32 v[v_upper], v[v_thread], 5, 1
  .set v_wave_of, 7
  v_lshrrev_b32 v[v_wave_of], 6, v[v_thread]
  s_nop 0
  v_readfirstlane_b32 s[s_wave], v[v_wave_of]
  .set s_wave_m, 40
  .set s_wave_n, 41
  s_and_b32 s[s_wave_m], s[s_wave], 1
  s_lshr_b32 s[s_wave_n], s[s_wave], 1
  s_mul_i32 s[s_wave_m], s[s_wave_m], 32
  s_mul_i32 s[s_wave_n], s[s_wave_n], 32
  .set v_read_x, 8
  .set v_read_w, 12
  .set v_turn, 7
  .set v_chosen, 16
  v_bfe_u32 v[v_turn], v[v_lane], 1, 3
  v_add_u32 v[v_chosen], 0, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x], v[v_read_x], 7, v[v_chosen]
  v_add_u32 v[v_chosen], 2, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x+1], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x+1], v[v_read_x+1], 7, v[v_chosen]
  v_add_u32 v[v_chosen], 4, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x+2], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x+2], v[v_read_x+2], 7, v[v_chosen]
  v_add_u32 v[v_chosen], 6, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x+3], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x+3], v[v_read_x+3], 7, v[v_chosen]
  v_add_u32 v[v_chosen], 0, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w], v[v_read_w], 7, v[v_chosen]
  v_add_u32 v[v_read_w], 0x2000, v[v_read_w]
  v_add_u32 v[v_chosen], 2, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w+1], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w+1], v[v_read_w+1], 7, v[v_chosen]
  v_add_u32 v[v_read_w+1], 0x2000, v[v_read_w+1]
  v_add_u32 v[v_chosen], 4, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w+2], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w+2], v[v_read_w+2], 7, v[v_chosen]
  v_add_u32 v[v_read_w+2], 0x2000, v[v_read_w+2]
  v_add_u32 v[v_chosen], 6, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w+3], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w+3], v[v_read_w+3], 7, v[v_chosen]
  v_add_u32 v[v_read_w+3], 0x2000, v[v_read_w+3]
  .set v_frags, 16
  .set s_k_at, 42
  .set s_iterations, 43
  s_mov_b32 s[s_k_at], 0
  s_lshr_b32 s[s_iterations], s[s_k], 7

  // The sums
  .set v_sums, 48
  .set v_totals, 64
  .set v_factors, 80
  v_mov_b32 v[v_sums], 0
  v_mov_b32 v[v_sums+1], 0
  v_mov_b32 v[v_sums+2], 0
  v_mov_b32 v[v_sums+3], 0
  v_mov_b32 v[v_sums+4], 0
  v_mov_b32 v[v_sums+5], 0
  v_mov_b32 v[v_sums+6], 0
  v_mov_b32 v[v_sums+7], 0
  v_mov_b32 v[v_sums+8], 0
  v_mov_b32 v[v_sums+9], 0
  v_mov_b32 v[v_sums+10], 0
  v_mov_b32 v[v_sums+11], 0
  v_mov_b32 v[v_sums+12], 0
  v_mov_b32 v[v_sums+13], 0
  v_mov_b32 v[v_sums+14], 0
  v_mov_b32 v[v_sums+15], 0
  v_mov_b32 v[v_totals], 0
  v_mov_b32 v[v_totals+1], 0
  v_mov_b32 v[v_totals+2], 0
  v_mov_b32 v[v_totals+3], 0
  v_mov_b32 v[v_totals+4], 0
  v_mov_b32 v[v_totals+5], 0
  v_mov_b32 v[v_totals+6], 0
  v_mov_b32 v[v_totals+7], 0
  v_mov_b32 v[v_totals+8], 0
  v_mov_b32 v[v_totals+9], 0
  v_mov_b32 v[v_totals+10], 0
  v_mov_b32 v[v_totals+11], 0
  v_mov_b32 v[v_totals+12], 0
  v_mov_b32 v[v_totals+13], 0
  v_mov_b32 v[v_totals+14], 0
  v_mov_b32 v[v_totals+15], 0
  v_mov_b32 v[v_factors], 0
  v_mov_b32 v[v_factors+1], 0

  // The scales of this lane's rows of x, and of this wave's rows of w
  .set v_x_scales, 7
  .set v_w_scales, 82
  .set v_scale_at, 83
  .set v_origin, 84
  .set s_x_block, 44
  .set s_w_block, 45
  v_mov_b32 v[v_origin], 0
  s_mov_b32 s[s_x_block], 0
  s_mov_b32 s[s_w_block], 0
  .set s_blocks, 46
  .set s_size, 47
  s_lshr_b32 s[s_blocks], s[s_k], 7
  s_sub_u32 s[s_blocks], s[s_blocks], 1
  s_mul_i32 s[s_size], s[s_blocks], s[s_x_scale_block]
  s_add_u32 s[s_size], s[s_size], 4
  .set s_x_scale_rows, 48
  .set s_left, 52
  s_sub_u32 s[s_left], s[s_m], s[s_m_first]
  s_min_u32 s[s_left], s[s_left], 64
  s_sub_u32 s[s_left], s[s_left], 1
  s_mul_i32 s[s_left], s[s_left], s[s_x_scale_row]
  s_add_u32 s[s_x_scale_rows+2], s[s_left], s[s_size]
  s_mul_i32 s[s_x_scale_rows], s[s_m_first], s[s_x_scale_row]
  s_mul_hi_u32 s[s_x_scale_rows+1], s[s_m_first], s[s_x_scale_row]
  s_add_u32 s[s_x_scale_rows], s[s_x_scale_rows], s[s_x_scale]
  s_addc_u32 s[s_x_scale_rows+1], s[s_x_scale_rows+1], s[s_x_scale+1]
  s_and_b32 s[s_x_scale_rows+1], s[s_x_scale_rows+1], 0xffff
  s_mov_b32 s[s_x_scale_rows+3], 0x27000
  .set s_w_scale_row_of_wave, 52
  s_mul_i32 s[s_size], s[s_blocks], s[s_w_scale_block]
  s_add_u32 s[s_blocks], s[s_n_first], s[s_wave_n]
  s_lshr_b32 s[s_blocks], s[s_blocks], 7
  s_mul_i32 s[s_w_scale_row_of_wave], s[s_blocks], s[s_w_scale_row]
  s_mul_hi_u32 s[s_w_scale_row_of_wave+1], s[s_blocks], s[s_w_scale_row]
  s_add_u32 s[s_w_scale_row_of_wave], s[s_w_scale_row_of_wave], s[s_w_scale]
  s_addc_u32 s[s_w_scale_row_of_wave+1], s[s_w_scale_row_of_wave+1], s[s_w_scale+1]
  s_add_u32 s[s_w_scale_row_of_wave+2], s[s_size], 4
  s_and_b32 s[s_w_scale_row_of_wave+1], s[s_w_scale_row_of_wave+1], 0xffff
  s_mov_b32 s[s_w_scale_row_of_wave+3], 0x27000
  v_add_u32 v[v_scale_at], s[s_wave_m], v[v_lane]
  v_mul_lo_u32 v[v_scale_at], v[v_scale_at], s[s_x_scale_row]
  .set s_fill, 46
  .set s_between, 47
  s_lshl_b32 s[s_fill], s[s_wave], 10
  s_mov_b32 s[s_between], 0x4000

  // Before the loop: the first step in LDS
  s_add_u32 m0, s[s_fill], 0
  s_nop 0
  buffer_load_dwordx4 v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x1000
  s_nop 0
  buffer_load_dwordx4 v[v_x_at+1], s[s_x_rows:s_x_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x2000
  s_nop 0
  buffer_load_dwordx4 v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x3000
  s_nop 0
  buffer_load_dwordx4 v[v_w_at+1], s[s_w_rows:s_w_rows+3], s[s_k_at] offen lds
  s_add_u32 s[s_k_at], s[s_k_at], 0x80
  s_add_u32 s[s_fill], s[s_fill], s[s_between]
  s_waitcnt vmcnt(0)
  s_barrier
  buffer_load_dword v[v_x_scales], v[v_scale_at], s[s_x_scale_rows:s_x_scale_rows+3], s[s_x_block] offen
  buffer_load_dword v[v_w_scales], v[v_origin], s[s_w_scale_row_of_wave:s_w_scale_row_of_wave+3], s[s_w_block] offen
  s_add_u32 s[s_x_block], s[s_x_block], s[s_x_scale_block]
  s_add_u32 s[s_w_block], s[s_w_block], s[s_w_scale_block]
  ds_read_b128 v[v_frags:v_frags+3], v[v_read_w]
  ds_read_b128 v[v_frags+4:v_frags+7], v[v_read_w+1]
  ds_read_b128 v[v_frags+8:v_frags+11], v[v_read_x]
  ds_read_b128 v[v_frags+12:v_frags+15], v[v_read_x+1]

  // The loop: a step of k
scaled_linear_blocks_fp8_64x64.k.1:

  // Substep 0
  s_waitcnt lgkmcnt(0)
  v_pk_fma_f32 v[v_totals:v_totals+1], v[v_sums:v_sums+1], v[v_factors:v_factors+1], v[v_totals:v_totals+1] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+2:v_totals+3], v[v_sums+2:v_sums+3], v[v_factors:v_factors+1], v[v_totals+2:v_totals+3] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+4:v_totals+5], v[v_sums+4:v_sums+5], v[v_factors:v_factors+1], v[v_totals+4:v_totals+5] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+6:v_totals+7], v[v_sums+6:v_sums+7], v[v_factors:v_factors+1], v[v_totals+6:v_totals+7] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+8:v_totals+9], v[v_sums+8:v_sums+9], v[v_factors:v_factors+1], v[v_totals+8:v_totals+9] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+10:v_totals+11], v[v_sums+10:v_sums+11], v[v_factors:v_factors+1], v[v_totals+10:v_totals+11] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+12:v_totals+13], v[v_sums+12:v_sums+13], v[v_factors:v_factors+1], v[v_totals+12:v_totals+13] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+14:v_totals+15], v[v_sums+14:v_sums+15], v[v_factors:v_factors+1], v[v_totals+14:v_totals+15] op_sel_hi:[1,0,1]
  v_mfma_f32_32x32x64_f8f6f4 v[v_sums:v_sums+15], v[v_frags:v_frags+7], v[v_frags+8:v_frags+15], 0
  s_add_u32 m0, s[s_fill], 0
  s_nop 0
  buffer_load_dwordx4 v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x1000
  s_nop 0
  buffer_load_dwordx4 v[v_x_at+1], s[s_x_rows:s_x_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x2000
  s_nop 0
  buffer_load_dwordx4 v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen lds
  s_add_u32 m0, s[s_fill], 0x3000
  s_nop 0
  buffer_load_dwordx4 v[v_w_at+1], s[s_w_rows:s_w_rows+3], s[s_k_at] offen lds
  s_add_u32 s[s_k_at], s[s_k_at], 0x80
  ds_read_b128 v[v_frags+16:v_frags+19], v[v_read_w+2]
  ds_read_b128 v[v_frags+20:v_frags+23], v[v_read_w+3]
  ds_read_b128 v[v_frags+24:v_frags+27], v[v_read_x+2]
  ds_read_b128 v[v_frags+28:v_frags+31], v[v_read_x+3]
  s_waitcnt vmcnt(4)
  v_mul_f32 v[v_factors], v[v_w_scales], v[v_x_scales]
  buffer_load_dword v[v_x_scales], v[v_scale_at], s[s_x_scale_rows:s_x_scale_rows+3], s[s_x_block] offen
  buffer_load_dword v[v_w_scales], v[v_origin], s[s_w_scale_row_of_wave:s_w_scale_row_of_wave+3], s[s_w_block] offen
  s_add_u32 s[s_x_block], s[s_x_block], s[s_x_scale_block]
  s_add_u32 s[s_w_block], s[s_w_block], s[s_w_scale_block]

  // The last substep: half of it gives the loads time, beside the rest come the next step's chunks
  s_waitcnt lgkmcnt(0)
  v_add_u32 v[v_read_x], s[s_between], v[v_read_x]
  v_add_u32 v[v_read_x+1], s[s_between], v[v_read_x+1]
  v_add_u32 v[v_read_x+2], s[s_between], v[v_read_x+2]
  v_add_u32 v[v_read_x+3], s[s_between], v[v_read_x+3]
  v_add_u32 v[v_read_w], s[s_between], v[v_read_w]
  v_add_u32 v[v_read_w+1], s[s_between], v[v_read_w+1]
  v_add_u32 v[v_read_w+2], s[s_between], v[v_read_w+2]
  v_add_u32 v[v_read_w+3], s[s_between], v[v_read_w+3]
  s_waitcnt vmcnt(0)
  s_barrier
  s_sub_u32 s[s_fill], s[s_fill], s[s_between]
  v_mfma_f32_32x32x64_f8f6f4 v[v_sums:v_sums+15], v[v_frags+16:v_frags+23], v[v_frags+24:v_frags+31], v[v_sums:v_sums+15]
  ds_read_b128 v[v_frags:v_frags+3], v[v_read_w]
  ds_read_b128 v[v_frags+4:v_frags+7], v[v_read_w+1]
  ds_read_b128 v[v_frags+8:v_frags+11], v[v_read_x]
  ds_read_b128 v[v_frags+12:v_frags+15], v[v_read_x+1]
  s_sub_u32 s[s_between], 0, s[s_between]
  s_nop 2
  s_nop 7
  s_sub_u32 s[s_iterations], s[s_iterations], 1
  s_cmp_lg_u32 s[s_iterations], 0
  s_cbranch_scc1 scaled_linear_blocks_fp8_64x64.k.1
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_nop 7
  s_nop 2
  v_pk_fma_f32 v[v_totals:v_totals+1], v[v_sums:v_sums+1], v[v_factors:v_factors+1], v[v_totals:v_totals+1] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+2:v_totals+3], v[v_sums+2:v_sums+3], v[v_factors:v_factors+1], v[v_totals+2:v_totals+3] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+4:v_totals+5], v[v_sums+4:v_sums+5], v[v_factors:v_factors+1], v[v_totals+4:v_totals+5] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+6:v_totals+7], v[v_sums+6:v_sums+7], v[v_factors:v_factors+1], v[v_totals+6:v_totals+7] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+8:v_totals+9], v[v_sums+8:v_sums+9], v[v_factors:v_factors+1], v[v_totals+8:v_totals+9] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+10:v_totals+11], v[v_sums+10:v_sums+11], v[v_factors:v_factors+1], v[v_totals+10:v_totals+11] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+12:v_totals+13], v[v_sums+12:v_sums+13], v[v_factors:v_factors+1], v[v_totals+12:v_totals+13] op_sel_hi:[1,0,1]
  v_pk_fma_f32 v[v_totals+14:v_totals+15], v[v_sums+14:v_sums+15], v[v_factors:v_factors+1], v[v_totals+14:v_totals+15] op_sel_hi:[1,0,1]

  // The tile of y
  .set s_y_stride, 56
  .set v_column, 2
  s_mul_i32 s[s_y_stride], s[s_n], 2
  .set s_y_rows, 60
  .set s_left, 57
  s_sub_u32 s[s_left], s[s_m], s[s_m_first]
  s_min_u32 s[s_left], s[s_left], 64
  s_sub_u32 s[s_left], s[s_left], 1
  s_mul_i32 s[s_left], s[s_left], s[s_y_stride]
  s_add_u32 s[s_y_rows+2], s[s_left], s[s_y_stride]
  s_mul_i32 s[s_y_rows], s[s_m_first], s[s_y_stride]
  s_mul_hi_u32 s[s_y_rows+1], s[s_m_first], s[s_y_stride]
  s_add_u32 s[s_y_rows], s[s_y_rows], s[s_y]
  s_addc_u32 s[s_y_rows+1], s[s_y_rows+1], s[s_y+1]
  s_and_b32 s[s_y_rows+1], s[s_y_rows+1], 0xffff
  s_mov_b32 s[s_y_rows+3], 0x27000
  .set s_biases, 64
  s_mov_b32 s[s_biases], s[s_bias]
  s_and_b32 s[s_biases+1], s[s_bias+1], 0xffff
  s_mov_b32 s[s_biases+2], s[s_bias_bytes]
  s_mov_b32 s[s_biases+3], 0x27000
  s_add_u32 s[s_n_first], s[s_n_first], s[s_wave_n]
  v_lshl_add_u32 v[v_column], v[v_upper], 2, s[s_n_first]
  .set v_row_at, 3
  .set v_bias_at, 4
  v_lshlrev_b32 v[v_bias_at], 2, v[v_column]
  .set v_column_at, 5
  v_lshlrev_b32 v[v_column_at], 1, v[v_column]
  v_add_u32 v[v_row_at], s[s_wave_m], v[v_lane]
  v_mul_lo_u32 v[v_row_at], v[v_row_at], s[s_y_stride]
  v_add_u32 v[v_row_at], v[v_row_at], v[v_column_at]
  .set v_far, 5
  v_mov_b32 v[v_far], 0x7fffffff
  .set s_inside, 68
  .set v_values, 8
  .set v_packed, 24
  .set v_bias_values, 32

  // All biases and scales, before the first store: a wait for one that came later would wait for stores
  .set v_bias_packed0, 48
  buffer_load_dwordx4 v[v_bias_packed0:v_bias_packed0+3], v[v_bias_at], s[s_biases:s_biases+3], 0 offen
  buffer_load_dwordx4 v[v_bias_packed0+4:v_bias_packed0+7], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:32
  buffer_load_dwordx4 v[v_bias_packed0+8:v_bias_packed0+11], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:64
  buffer_load_dwordx4 v[v_bias_packed0+12:v_bias_packed0+15], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:96
  s_waitcnt vmcnt(0)

  // Columns 0 and on
  .set v_at_column, 85
  v_add_u32 v[v_at_column], 0, v[v_column]
  v_cmp_gt_u32 s[s_inside:s_inside+1], s[s_n], v[v_at_column]
  .set v_at_column, 85
  v_add_u32 v[v_at_column], 8, v[v_column]
  v_cmp_gt_u32 s[s_inside+2:s_inside+3], s[s_n], v[v_at_column]
  .set v_at_column, 85
  v_add_u32 v[v_at_column], 16, v[v_column]
  v_cmp_gt_u32 s[s_inside+4:s_inside+5], s[s_n], v[v_at_column]
  .set v_at_column, 85
  v_add_u32 v[v_at_column], 24, v[v_column]
  v_cmp_gt_u32 s[s_inside+6:s_inside+7], s[s_n], v[v_at_column]
  v_mov_b32 v[v_bias_values], v[v_bias_packed0]
  v_mov_b32 v[v_bias_values+1], v[v_bias_packed0+1]
  v_mov_b32 v[v_bias_values+2], v[v_bias_packed0+2]
  v_mov_b32 v[v_bias_values+3], v[v_bias_packed0+3]
  v_mov_b32 v[v_bias_values+4], v[v_bias_packed0+4]
  v_mov_b32 v[v_bias_values+5], v[v_bias_packed0+5]
  v_mov_b32 v[v_bias_values+6], v[v_bias_packed0+6]
  v_mov_b32 v[v_bias_values+7], v[v_bias_packed0+7]
  v_mov_b32 v[v_bias_values+8], v[v_bias_packed0+8]
  v_mov_b32 v[v_bias_values+9], v[v_bias_packed0+9]
  v_mov_b32 v[v_bias_values+10], v[v_bias_packed0+10]
  v_mov_b32 v[v_bias_values+11], v[v_bias_packed0+11]
  v_mov_b32 v[v_bias_values+12], v[v_bias_packed0+12]
  v_mov_b32 v[v_bias_values+13], v[v_bias_packed0+13]
  v_mov_b32 v[v_bias_values+14], v[v_bias_packed0+14]
  v_mov_b32 v[v_bias_values+15], v[v_bias_packed0+15]
  v_mov_b32 v[v_values], v[v_totals]
  v_mov_b32 v[v_values+1], v[v_totals+1]
  v_mov_b32 v[v_values+2], v[v_totals+2]
  v_mov_b32 v[v_values+3], v[v_totals+3]
  v_mov_b32 v[v_values+4], v[v_totals+4]
  v_mov_b32 v[v_values+5], v[v_totals+5]
  v_mov_b32 v[v_values+6], v[v_totals+6]
  v_mov_b32 v[v_values+7], v[v_totals+7]
  v_mov_b32 v[v_values+8], v[v_totals+8]
  v_mov_b32 v[v_values+9], v[v_totals+9]
  v_mov_b32 v[v_values+10], v[v_totals+10]
  v_mov_b32 v[v_values+11], v[v_totals+11]
  v_mov_b32 v[v_values+12], v[v_totals+12]
  v_mov_b32 v[v_values+13], v[v_totals+13]
  v_mov_b32 v[v_values+14], v[v_totals+14]
  v_mov_b32 v[v_values+15], v[v_totals+15]
  v_pk_add_f32 v[v_values:v_values+1], v[v_values:v_values+1], v[v_bias_values:v_bias_values+1]
  v_pk_add_f32 v[v_values+2:v_values+3], v[v_values+2:v_values+3], v[v_bias_values+2:v_bias_values+3]
  v_pk_add_f32 v[v_values+4:v_values+5], v[v_values+4:v_values+5], v[v_bias_values+4:v_bias_values+5]
  v_pk_add_f32 v[v_values+6:v_values+7], v[v_values+6:v_values+7], v[v_bias_values+6:v_bias_values+7]
  v_pk_add_f32 v[v_values+8:v_values+9], v[v_values+8:v_values+9], v[v_bias_values+8:v_bias_values+9]
  v_pk_add_f32 v[v_values+10:v_values+11], v[v_values+10:v_values+11], v[v_bias_values+10:v_bias_values+11]
  v_pk_add_f32 v[v_values+12:v_values+13], v[v_values+12:v_values+13], v[v_bias_values+12:v_bias_values+13]
  v_pk_add_f32 v[v_values+14:v_values+15], v[v_values+14:v_values+15], v[v_bias_values+14:v_bias_values+15]
  v_cvt_pk_bf16_f32 v[v_packed], v[v_values], v[v_values+1]
  v_cvt_pk_bf16_f32 v[v_packed+1], v[v_values+2], v[v_values+3]
  v_cvt_pk_bf16_f32 v[v_packed+2], v[v_values+4], v[v_values+5]
  v_cvt_pk_bf16_f32 v[v_packed+3], v[v_values+6], v[v_values+7]
  v_cvt_pk_bf16_f32 v[v_packed+4], v[v_values+8], v[v_values+9]
  v_cvt_pk_bf16_f32 v[v_packed+5], v[v_values+10], v[v_values+11]
  v_cvt_pk_bf16_f32 v[v_packed+6], v[v_values+12], v[v_values+13]
  v_cvt_pk_bf16_f32 v[v_packed+7], v[v_values+14], v[v_values+15]
  .set v_store_at0, 85
  v_cndmask_b32_e64 v[v_store_at0], v[v_far], v[v_row_at], s[s_inside:s_inside+1]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_store_at0], s[s_y_rows:s_y_rows+3], 0 offen
  .set v_store_at1, 85
  v_cndmask_b32_e64 v[v_store_at1], v[v_far], v[v_row_at], s[s_inside+2:s_inside+3]
  buffer_store_dwordx2 v[v_packed+2:v_packed+3], v[v_store_at1], s[s_y_rows:s_y_rows+3], 0 offen offset:16
  .set v_store_at2, 85
  v_cndmask_b32_e64 v[v_store_at2], v[v_far], v[v_row_at], s[s_inside+4:s_inside+5]
  buffer_store_dwordx2 v[v_packed+4:v_packed+5], v[v_store_at2], s[s_y_rows:s_y_rows+3], 0 offen offset:32
  .set v_store_at3, 85
  v_cndmask_b32_e64 v[v_store_at3], v[v_far], v[v_row_at], s[s_inside+6:s_inside+7]
  buffer_store_dwordx2 v[v_packed+6:v_packed+7], v[v_store_at3], s[s_y_rows:s_y_rows+3], 0 offen offset:48
  s_endpgm
.scaled_linear_blocks_fp8_64x64_end:
.size scaled_linear_blocks_fp8_64x64, .scaled_linear_blocks_fp8_64x64_end - scaled_linear_blocks_fp8_64x64

.rodata
.p2align 6
.amdhsa_kernel scaled_linear_blocks_fp8_64x64
  .amdhsa_group_segment_fixed_size 32768
  .amdhsa_kernarg_size 88
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_sgpr_workgroup_id_z 0
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 88
  .amdhsa_accum_offset 88
  .amdhsa_next_free_sgpr 76
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx950
amdhsa.kernels:
  - .name: scaled_linear_blocks_fp8_64x64
    .symbol: scaled_linear_blocks_fp8_64x64.kd
    .kernarg_segment_size: 88
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 32768
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 82
    .vgpr_count: 88
    .agpr_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: x, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: w, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: bias, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: y, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: x_scale, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: w_scale, .offset: 40, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: m, .offset: 48, .size: 4, .value_kind: by_value}
      - {.name: n, .offset: 52, .size: 4, .value_kind: by_value}
      - {.name: k, .offset: 56, .size: 4, .value_kind: by_value}
      - {.name: x_stride, .offset: 60, .size: 4, .value_kind: by_value}
      - {.name: w_stride, .offset: 64, .size: 4, .value_kind: by_value}
      - {.name: bias_bytes, .offset: 68, .size: 4, .value_kind: by_value}
      - {.name: x_scale_row, .offset: 72, .size: 4, .value_kind: by_value}
      - {.name: x_scale_block, .offset: 76, .size: 4, .value_kind: by_value}
      - {.name: w_scale_row, .offset: 80, .size: 4, .value_kind: by_value}
      - {.name: w_scale_block, .offset: 84, .size: 4, .value_kind: by_value}
...
.end_amdgpu_metadata
