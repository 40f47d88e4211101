// linear for gfx942, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.amdhsa_code_object_version 5

// y = x @ w.T + bias, x and w bf16, y bf16; a workgroup's tile is 64 rows of x by 64 of w,
// of which each of two buffers of LDS holds 64 bytes. Grid: tiles of n, tiles of m.
// Arguments: x p at 0, w p at 8, bias p at 16, y p at 24, x_scale p at 32, w_scale p at 40, m I at 48, n I at 52, k I at 56, x_stride I at 60, w_stride I at 64, bias_bytes I at 68
.text
.globl linear_bf16_64x64
.p2align 8
.type linear_bf16_64x64,@function
linear_bf16_64x64:
  .set s_kernarg, 0
  .set s_group, 2
  .set v_thread, 0
  .set s_arguments, 4
  s_load_dwordx16 s[s_arguments:s_arguments+15], s[s_kernarg:s_kernarg+1], 0
  s_load_dwordx2 s[s_arguments+16:s_arguments+17], s[s_kernarg:s_kernarg+1], 64
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

  // Buffers of the tiles' rows; those past the last one read as 0
  .set s_k_bytes, 24
  s_mul_i32 s[s_k_bytes], s[s_k], 2
  .set s_n_first, 25
  .set s_m_first, 26
  s_mul_i32 s[s_n_first], s[s_group], 64
  s_mul_i32 s[s_m_first], s[s_group+1], 64
  .set s_x_rows, 28
  .set s_left, 27
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
  .set s_w_rows, 32
  .set s_left, 27
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
  .set v_x_at, 1
  .set v_w_at, 2
  .set v_row, 3
  .set v_chunk, 4
  .set v_swizzle, 5
  v_lshrrev_b32 v[v_row], 2, v[v_thread]
  v_and_b32 v[v_chunk], 3, v[v_thread]
  v_bfe_u32 v[v_swizzle], v[v_row], 1, 2
  .set v_write_at, 6
  v_xor_b32 v[v_swizzle], v[v_swizzle], v[v_chunk]
  v_lshlrev_b32 v[v_write_at], 4, v[v_swizzle]
  v_lshl_add_u32 v[v_write_at], v[v_row], 6, v[v_write_at]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_add_u32 v[v_x_at], 0, v[v_row]
  v_mul_lo_u32 v[v_x_at], v[v_x_at], s[s_x_stride]
  v_add_u32 v[v_x_at], v[v_x_at], v[v_chunk]
  v_add_u32 v[v_w_at], 0, v[v_row]
  v_mul_lo_u32 v[v_w_at], v[v_w_at], s[s_w_stride]
  v_add_u32 v[v_w_at], v[v_w_at], v[v_chunk]

  // The chunks that a lane reads of LDS: its row's, swizzled, of both tiles
  .set v_lane, 3
  .set v_upper, 4
  .set s_wave, 27
  v_and_b32 v[v_lane], 31, v[v_thread]
  v_bfe_u32 v[v_upper], v[v_thread], 5, 1
  .set v_wave_of, 5
  v_lshrrev_b32 v[v_wave_of], 6, v[v_thread]
  s_nop 0
  v_readfirstlane_b32 s[s_wave], v[v_wave_of]
  .set s_wave_m, 36
  .set s_wave_n, 37
  s_and_b32 s[s_wave_m], s[s_wave], 1
  s_lshr_b32 s[s_wave_n], s[s_wave], 1
  s_mul_i32 s[s_wave_m], s[s_wave_m], 32
  s_mul_i32 s[s_wave_n], s[s_wave_n], 32
  .set v_read_x, 8
  .set v_read_w, 10
  .set v_turn, 5
  .set v_chosen, 7
  v_bfe_u32 v[v_turn], v[v_lane], 1, 2
  v_add_u32 v[v_chosen], 0, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x], v[v_read_x], 6, v[v_chosen]
  v_add_u32 v[v_chosen], 2, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_x+1], s[s_wave_m], v[v_lane]
  v_lshl_add_u32 v[v_read_x+1], v[v_read_x+1], 6, v[v_chosen]
  v_add_u32 v[v_chosen], 0, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w], v[v_read_w], 6, v[v_chosen]
  v_add_u32 v[v_read_w], 0x1000, v[v_read_w]
  v_add_u32 v[v_chosen], 2, v[v_upper]
  v_xor_b32 v[v_chosen], v[v_chosen], v[v_turn]
  v_lshlrev_b32 v[v_chosen], 4, v[v_chosen]
  v_add_u32 v[v_read_w+1], s[s_wave_n], v[v_lane]
  v_lshl_add_u32 v[v_read_w+1], v[v_read_w+1], 6, v[v_chosen]
  v_add_u32 v[v_read_w+1], 0x1000, v[v_read_w+1]
  .set v_frags, 12
  .set s_k_at, 38
  .set s_iterations, 39
  s_mov_b32 s[s_k_at], 0
  s_lshr_b32 s[s_iterations], s[s_k], 6

  // The sums
  .set a_sums, 0
  v_accvgpr_write_b32 a[a_sums], 0
  v_accvgpr_write_b32 a[a_sums+1], 0
  v_accvgpr_write_b32 a[a_sums+2], 0
  v_accvgpr_write_b32 a[a_sums+3], 0
  v_accvgpr_write_b32 a[a_sums+4], 0
  v_accvgpr_write_b32 a[a_sums+5], 0
  v_accvgpr_write_b32 a[a_sums+6], 0
  v_accvgpr_write_b32 a[a_sums+7], 0
  v_accvgpr_write_b32 a[a_sums+8], 0
  v_accvgpr_write_b32 a[a_sums+9], 0
  v_accvgpr_write_b32 a[a_sums+10], 0
  v_accvgpr_write_b32 a[a_sums+11], 0
  v_accvgpr_write_b32 a[a_sums+12], 0
  v_accvgpr_write_b32 a[a_sums+13], 0
  v_accvgpr_write_b32 a[a_sums+14], 0
  v_accvgpr_write_b32 a[a_sums+15], 0
  .set v_stage0, 28
  .set v_stage1, 36

  // Before the loop: two steps on their way, the first in LDS
  buffer_load_dwordx4 v[v_stage0:v_stage0+3], v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen
  buffer_load_dwordx4 v[v_stage0+4:v_stage0+7], v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen
  s_add_u32 s[s_k_at], s[s_k_at], 64
  buffer_load_dwordx4 v[v_stage1:v_stage1+3], v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen
  buffer_load_dwordx4 v[v_stage1+4:v_stage1+7], v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen
  s_add_u32 s[s_k_at], s[s_k_at], 64
  s_waitcnt vmcnt(2)
  ds_write_b128 v[v_write_at], v[v_stage0:v_stage0+3] offset:0
  ds_write_b128 v[v_write_at], v[v_stage0+4:v_stage0+7] offset:4096
  buffer_load_dwordx4 v[v_stage0:v_stage0+3], v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen
  buffer_load_dwordx4 v[v_stage0+4:v_stage0+7], v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen
  s_add_u32 s[s_k_at], s[s_k_at], 64
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[v_frags:v_frags+3], v[v_read_w]
  ds_read_b128 v[v_frags+4:v_frags+7], v[v_read_x]

  // The loop: two steps of k
linear_bf16_64x64.k.1:

  // Step in buffer 0
  s_waitcnt lgkmcnt(0)
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags:v_frags+1], v[v_frags+4:v_frags+5], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags+8:v_frags+11], v[v_read_w+1]
  ds_read_b128 v[v_frags+12:v_frags+15], v[v_read_x+1]
  s_waitcnt vmcnt(2)
  ds_write_b128 v[v_write_at], v[v_stage1:v_stage1+3] offset:8192
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+2:v_frags+3], v[v_frags+6:v_frags+7], a[a_sums:a_sums+15]
  ds_write_b128 v[v_write_at], v[v_stage1+4:v_stage1+7] offset:12288
  buffer_load_dwordx4 v[v_stage1:v_stage1+3], v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen
  buffer_load_dwordx4 v[v_stage1+4:v_stage1+7], v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen
  s_add_u32 s[s_k_at], s[s_k_at], 64
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+8:v_frags+9], v[v_frags+12:v_frags+13], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags:v_frags+3], v[v_read_w] offset:8192
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+10:v_frags+11], v[v_frags+14:v_frags+15], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags+4:v_frags+7], v[v_read_x] offset:8192

  // Step in buffer 1
  s_waitcnt lgkmcnt(0)
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags:v_frags+1], v[v_frags+4:v_frags+5], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags+8:v_frags+11], v[v_read_w+1] offset:8192
  ds_read_b128 v[v_frags+12:v_frags+15], v[v_read_x+1] offset:8192
  s_waitcnt vmcnt(2)
  ds_write_b128 v[v_write_at], v[v_stage0:v_stage0+3] offset:0
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+2:v_frags+3], v[v_frags+6:v_frags+7], a[a_sums:a_sums+15]
  ds_write_b128 v[v_write_at], v[v_stage0+4:v_stage0+7] offset:4096
  buffer_load_dwordx4 v[v_stage0:v_stage0+3], v[v_x_at], s[s_x_rows:s_x_rows+3], s[s_k_at] offen
  buffer_load_dwordx4 v[v_stage0+4:v_stage0+7], v[v_w_at], s[s_w_rows:s_w_rows+3], s[s_k_at] offen
  s_add_u32 s[s_k_at], s[s_k_at], 64
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+8:v_frags+9], v[v_frags+12:v_frags+13], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags:v_frags+3], v[v_read_w]
  v_mfma_f32_32x32x8_bf16 a[a_sums:a_sums+15], v[v_frags+10:v_frags+11], v[v_frags+14:v_frags+15], a[a_sums:a_sums+15]
  ds_read_b128 v[v_frags+4:v_frags+7], v[v_read_x]
  s_sub_u32 s[s_iterations], s[s_iterations], 1
  s_cmp_lg_u32 s[s_iterations], 0
  s_cbranch_scc1 linear_bf16_64x64.k.1
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_waitcnt vmcnt(0) lgkmcnt(0)

  // The tile of y
  .set s_y_stride, 40
  .set v_column, 1
  s_mul_i32 s[s_y_stride], s[s_n], 2
  .set s_y_rows, 44
  .set s_left, 41
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
  .set s_biases, 48
  s_mov_b32 s[s_biases], s[s_bias]
  s_and_b32 s[s_biases+1], s[s_bias+1], 0xffff
  s_mov_b32 s[s_biases+2], s[s_bias_bytes]
  s_mov_b32 s[s_biases+3], 0x27000
  s_add_u32 s[s_n_first], s[s_n_first], s[s_wave_n]
  v_lshl_add_u32 v[v_column], v[v_upper], 2, s[s_n_first]
  .set v_row_at, 2
  .set v_bias_at, 5
  v_lshlrev_b32 v[v_bias_at], 1, v[v_column]
  .set v_column_at, 6
  v_lshlrev_b32 v[v_column_at], 1, v[v_column]
  v_add_u32 v[v_row_at], s[s_wave_m], v[v_lane]
  v_mul_lo_u32 v[v_row_at], v[v_row_at], s[s_y_stride]
  v_add_u32 v[v_row_at], v[v_row_at], v[v_column_at]
  .set v_far, 6
  v_mov_b32 v[v_far], 0x7fffffff
  .set s_inside, 52
  .set v_values, 8
  .set v_packed, 24
  .set v_bias_values, 32

  // All biases and scales, before the first store: a wait for one that came later would wait for stores
  .set v_bias_packed0, 48
  buffer_load_dwordx2 v[v_bias_packed0:v_bias_packed0+1], v[v_bias_at], s[s_biases:s_biases+3], 0 offen
  buffer_load_dwordx2 v[v_bias_packed0+2:v_bias_packed0+3], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:16
  buffer_load_dwordx2 v[v_bias_packed0+4:v_bias_packed0+5], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:32
  buffer_load_dwordx2 v[v_bias_packed0+6:v_bias_packed0+7], v[v_bias_at], s[s_biases:s_biases+3], 0 offen offset:48
  s_waitcnt vmcnt(0)

  // Columns 0 and on
  .set v_at_column, 7
  v_add_u32 v[v_at_column], 0, v[v_column]
  v_cmp_gt_u32 s[s_inside:s_inside+1], s[s_n], v[v_at_column]
  .set v_at_column, 7
  v_add_u32 v[v_at_column], 8, v[v_column]
  v_cmp_gt_u32 s[s_inside+2:s_inside+3], s[s_n], v[v_at_column]
  .set v_at_column, 7
  v_add_u32 v[v_at_column], 16, v[v_column]
  v_cmp_gt_u32 s[s_inside+4:s_inside+5], s[s_n], v[v_at_column]
  .set v_at_column, 7
  v_add_u32 v[v_at_column], 24, v[v_column]
  v_cmp_gt_u32 s[s_inside+6:s_inside+7], s[s_n], v[v_at_column]
  v_lshlrev_b32 v[v_bias_values], 16, v[v_bias_packed0]
  v_and_b32 v[v_bias_values+1], 0xffff0000, v[v_bias_packed0]
  v_lshlrev_b32 v[v_bias_values+2], 16, v[v_bias_packed0+1]
  v_and_b32 v[v_bias_values+3], 0xffff0000, v[v_bias_packed0+1]
  v_lshlrev_b32 v[v_bias_values+4], 16, v[v_bias_packed0+2]
  v_and_b32 v[v_bias_values+5], 0xffff0000, v[v_bias_packed0+2]
  v_lshlrev_b32 v[v_bias_values+6], 16, v[v_bias_packed0+3]
  v_and_b32 v[v_bias_values+7], 0xffff0000, v[v_bias_packed0+3]
  v_lshlrev_b32 v[v_bias_values+8], 16, v[v_bias_packed0+4]
  v_and_b32 v[v_bias_values+9], 0xffff0000, v[v_bias_packed0+4]
  v_lshlrev_b32 v[v_bias_values+10], 16, v[v_bias_packed0+5]
  v_and_b32 v[v_bias_values+11], 0xffff0000, v[v_bias_packed0+5]
  v_lshlrev_b32 v[v_bias_values+12], 16, v[v_bias_packed0+6]
  v_and_b32 v[v_bias_values+13], 0xffff0000, v[v_bias_packed0+6]
  v_lshlrev_b32 v[v_bias_values+14], 16, v[v_bias_packed0+7]
  v_and_b32 v[v_bias_values+15], 0xffff0000, v[v_bias_packed0+7]
  v_accvgpr_read_b32 v[v_values], a[a_sums]
  v_accvgpr_read_b32 v[v_values+1], a[a_sums+1]
  v_accvgpr_read_b32 v[v_values+2], a[a_sums+2]
  v_accvgpr_read_b32 v[v_values+3], a[a_sums+3]
  v_accvgpr_read_b32 v[v_values+4], a[a_sums+4]
  v_accvgpr_read_b32 v[v_values+5], a[a_sums+5]
  v_accvgpr_read_b32 v[v_values+6], a[a_sums+6]
  v_accvgpr_read_b32 v[v_values+7], a[a_sums+7]
  v_accvgpr_read_b32 v[v_values+8], a[a_sums+8]
  v_accvgpr_read_b32 v[v_values+9], a[a_sums+9]
  v_accvgpr_read_b32 v[v_values+10], a[a_sums+10]
  v_accvgpr_read_b32 v[v_values+11], a[a_sums+11]
  v_accvgpr_read_b32 v[v_values+12], a[a_sums+12]
  v_accvgpr_read_b32 v[v_values+13], a[a_sums+13]
  v_accvgpr_read_b32 v[v_values+14], a[a_sums+14]
  v_accvgpr_read_b32 v[v_values+15], a[a_sums+15]
  v_pk_add_f32 v[v_values:v_values+1], v[v_values:v_values+1], v[v_bias_values:v_bias_values+1]
  v_pk_add_f32 v[v_values+2:v_values+3], v[v_values+2:v_values+3], v[v_bias_values+2:v_bias_values+3]
  v_pk_add_f32 v[v_values+4:v_values+5], v[v_values+4:v_values+5], v[v_bias_values+4:v_bias_values+5]
  v_pk_add_f32 v[v_values+6:v_values+7], v[v_values+6:v_values+7], v[v_bias_values+6:v_bias_values+7]
  v_pk_add_f32 v[v_values+8:v_values+9], v[v_values+8:v_values+9], v[v_bias_values+8:v_bias_values+9]
  v_pk_add_f32 v[v_values+10:v_values+11], v[v_values+10:v_values+11], v[v_bias_values+10:v_bias_values+11]
  v_pk_add_f32 v[v_values+12:v_values+13], v[v_values+12:v_values+13], v[v_bias_values+12:v_bias_values+13]
  v_pk_add_f32 v[v_values+14:v_values+15], v[v_values+14:v_values+15], v[v_bias_values+14:v_bias_values+15]
  .set s_half_unit, 41
  s_mov_b32 s[s_half_unit], 0x7fff
  .set v_quiet_nan, 7
  v_mov_b32 v[v_quiet_nan], 0x7fff0000
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values], v[v_values]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+1], v[v_values+1]
  v_bfe_u32 v[v_odd], v[v_values], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+1], 16, 1
  v_add3_u32 v[v_odd], v[v_values], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+1], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+1], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  .set s_high_halves, 60
  s_mov_b32 s[s_high_halves], 0x7060302
  v_perm_b32 v[v_packed], v[v_values+1], v[v_values], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+2], v[v_values+2]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+3], v[v_values+3]
  v_bfe_u32 v[v_odd], v[v_values+2], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+3], 16, 1
  v_add3_u32 v[v_odd], v[v_values+2], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+3], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+2], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+3], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_values+3], v[v_values+2], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+4], v[v_values+4]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+5], v[v_values+5]
  v_bfe_u32 v[v_odd], v[v_values+4], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+5], 16, 1
  v_add3_u32 v[v_odd], v[v_values+4], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+5], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+4], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+5], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+2], v[v_values+5], v[v_values+4], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+6], v[v_values+6]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+7], v[v_values+7]
  v_bfe_u32 v[v_odd], v[v_values+6], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+7], 16, 1
  v_add3_u32 v[v_odd], v[v_values+6], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+7], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+6], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+7], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+3], v[v_values+7], v[v_values+6], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+8], v[v_values+8]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+9], v[v_values+9]
  v_bfe_u32 v[v_odd], v[v_values+8], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+9], 16, 1
  v_add3_u32 v[v_odd], v[v_values+8], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+9], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+8], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+9], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+4], v[v_values+9], v[v_values+8], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+10], v[v_values+10]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+11], v[v_values+11]
  v_bfe_u32 v[v_odd], v[v_values+10], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+11], 16, 1
  v_add3_u32 v[v_odd], v[v_values+10], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+11], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+10], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+11], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+5], v[v_values+11], v[v_values+10], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+12], v[v_values+12]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+13], v[v_values+13]
  v_bfe_u32 v[v_odd], v[v_values+12], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+13], 16, 1
  v_add3_u32 v[v_odd], v[v_values+12], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+13], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+12], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+13], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+6], v[v_values+13], v[v_values+12], s[s_high_halves]
  .set v_odd, 56
  .set s_is_nan, 42
  v_cmp_u_f32 vcc, v[v_values+14], v[v_values+14]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_values+15], v[v_values+15]
  v_bfe_u32 v[v_odd], v[v_values+14], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_values+15], 16, 1
  v_add3_u32 v[v_odd], v[v_values+14], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_values+15], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_values+14], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_values+15], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+7], v[v_values+15], v[v_values+14], s[s_high_halves]
  .set v_store_at0, 56
  v_cndmask_b32_e64 v[v_store_at0], v[v_far], v[v_row_at], s[s_inside:s_inside+1]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_store_at0], s[s_y_rows:s_y_rows+3], 0 offen
  .set v_store_at1, 56
  v_cndmask_b32_e64 v[v_store_at1], v[v_far], v[v_row_at], s[s_inside+2:s_inside+3]
  buffer_store_dwordx2 v[v_packed+2:v_packed+3], v[v_store_at1], s[s_y_rows:s_y_rows+3], 0 offen offset:16
  .set v_store_at2, 56
  v_cndmask_b32_e64 v[v_store_at2], v[v_far], v[v_row_at], s[s_inside+4:s_inside+5]
  buffer_store_dwordx2 v[v_packed+4:v_packed+5], v[v_store_at2], s[s_y_rows:s_y_rows+3], 0 offen offset:32
  .set v_store_at3, 56
  v_cndmask_b32_e64 v[v_store_at3], v[v_far], v[v_row_at], s[s_inside+6:s_inside+7]
  buffer_store_dwordx2 v[v_packed+6:v_packed+7], v[v_store_at3], s[s_y_rows:s_y_rows+3], 0 offen offset:48
  s_endpgm
.linear_bf16_64x64_end:
.size linear_bf16_64x64, .linear_bf16_64x64_end - linear_bf16_64x64

.rodata
.p2align 6
.amdhsa_kernel linear_bf16_64x64
  .amdhsa_group_segment_fixed_size 16384
  .amdhsa_kernarg_size 72
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_sgpr_workgroup_id_z 0
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 76
  .amdhsa_accum_offset 60
  .amdhsa_next_free_sgpr 61
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: linear_bf16_64x64
    .symbol: linear_bf16_64x64.kd
    .kernarg_segment_size: 72
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16384
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 67
    .vgpr_count: 76
    .agpr_count: 16
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
...
.end_amdgpu_metadata
