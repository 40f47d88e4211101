// attention for gfx942, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.amdhsa_code_object_version 5

// Attention of 128 bf16 queries to tiles of 64 keys, heads of 128.
// Grid: tiles of queries, the last one first; heads; batch.
// Arguments: q p at 0, k p at 8, v p at 16, out p at 24, lse p at 32, q_batch q at 40, k_batch q at 48, v_batch q at 56, q_token I at 64, q_head I at 68, k_token I at 72, k_head I at 76, v_token I at 80, v_head I at 84, seq_q I at 88, seq_k I at 92, heads I at 96, kv_share f at 100, shift i at 104, tiles I at 108, scale f at 112, q_keep I at 116, q_sign I at 120
.text
.globl attention_bf16
.p2align 8
.type attention_bf16,@function
attention_bf16:
  .set s_kernarg, 0
  .set s_group, 2
  .set v_thread, 0
  .set s_arguments, 8
  s_load_dwordx16 s[s_arguments:s_arguments+15], s[s_kernarg:s_kernarg+1], 0
  s_load_dwordx16 s[s_arguments+16:s_arguments+31], s[s_kernarg:s_kernarg+1], 64
  s_waitcnt lgkmcnt(0)
  .set s_q, 8
  .set s_k, 10
  .set s_v, 12
  .set s_out, 14
  .set s_lse, 16
  .set s_q_batch, 18
  .set s_k_batch, 20
  .set s_v_batch, 22
  .set s_q_token, 24
  .set s_q_head, 25
  .set s_k_token, 26
  .set s_k_head, 27
  .set s_v_token, 28
  .set s_v_head, 29
  .set s_seq_q, 30
  .set s_seq_k, 31
  .set s_heads, 32
  .set s_kv_share, 33
  .set s_shift, 34
  .set s_tiles, 35
  .set s_scale, 36
  .set s_q_keep, 37
  .set s_q_sign, 38
  .set s_low_halves, 5
  s_mov_b32 s[s_low_halves], 0x5040100
  .set s_high_halves, 6
  s_mov_b32 s[s_high_halves], 0x7060302

  // The wave, its queries, and how far they see
  .set s_wave, 7
  .set s_first, 40
  .set s_wave_first, 41
  .set v_wave_of, 1
  v_lshrrev_b32 v[v_wave_of], 6, v[v_thread]
  s_nop 0
  v_readfirstlane_b32 s[s_wave], v[v_wave_of]
  s_sub_u32 s[s_first], s[s_tiles], s[s_group]
  s_sub_u32 s[s_first], s[s_first], 1
  s_lshl_b32 s[s_first], s[s_first], 7
  s_lshl_b32 s[s_wave_first], s[s_wave], 5
  .set v_lane, 1
  .set v_upper, 2
  .set v_row, 3
  v_and_b32 v[v_lane], 31, v[v_thread]
  v_bfe_u32 v[v_upper], v[v_thread], 5, 1
  v_add_u32 v[v_row], s[s_wave_first], v[v_lane]
  .set s_last_key, 42
  s_sub_u32 s[s_last_key], s[s_seq_k], 1
  .set s_wave_sees, 43
  .set v_sees, 4
  s_add_i32 s[s_wave_sees], s[s_first], s[s_wave_first]
  s_add_i32 s[s_wave_sees], s[s_wave_sees], s[s_shift]
  v_add_u32 v[v_sees], s[s_wave_sees], v[v_lane]
  v_min_i32 v[v_sees], s[s_last_key], v[v_sees]
  s_min_i32 s[s_wave_sees], s[s_wave_sees], s[s_last_key]
  .set v_four, 5
  v_lshlrev_b32 v[v_four], 2, v[v_upper]
  v_sub_u32 v[v_sees], v[v_sees], v[v_four]
  .set s_pairs_of_tiles, 44
  .set s_key, 45
  s_add_i32 s[s_pairs_of_tiles], s[s_first], s[s_shift]
  s_add_i32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], 0x7f
  s_min_i32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], s[s_last_key]
  s_max_i32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], 0
  s_lshr_b32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], 7
  s_add_u32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], 1
  s_mov_b32 s[s_key], 0
  .set s_kv_head, 46
  .set v_head, 5
  v_cvt_f32_u32 v[v_head], s[s_group+1]
  v_add_f32 v[v_head], 0.5, v[v_head]
  v_mul_f32 v[v_head], s[s_kv_share], v[v_head]
  v_cvt_u32_f32 v[v_head], v[v_head]
  s_nop 0
  v_readfirstlane_b32 s[s_kv_head], v[v_head]

  // The queries
  .set s_q_place, 48
  .set s_batch_place, 50
  .set s_high, 47
  s_mul_i32 s[s_high], s[s_group+2], s[s_q_batch+1]
  s_mul_hi_u32 s[s_batch_place+1], s[s_group+2], s[s_q_batch]
  s_add_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_high]
  s_mul_i32 s[s_batch_place], s[s_group+2], s[s_q_batch]
  s_add_u32 s[s_batch_place], s[s_batch_place], s[s_q]
  s_addc_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_q+1]
  s_mul_i32 s[s_q_place], s[s_group+1], s[s_q_head]
  s_mul_hi_u32 s[s_q_place+1], s[s_group+1], s[s_q_head]
  s_add_u32 s[s_q_place], s[s_q_place], s[s_batch_place]
  s_addc_u32 s[s_q_place+1], s[s_q_place+1], s[s_batch_place+1]
  .set s_q_rows, 52
  s_mul_i32 s[s_q_rows], s[s_first], s[s_q_token]
  s_mul_hi_u32 s[s_q_rows+1], s[s_first], s[s_q_token]
  s_add_u32 s[s_q_rows], s[s_q_rows], s[s_q_place]
  s_addc_u32 s[s_q_rows+1], s[s_q_rows+1], s[s_q_place+1]
  s_sub_u32 s[s_q_rows+2], s[s_seq_q], s[s_first]
  s_min_u32 s[s_q_rows+2], s[s_q_rows+2], 0x80
  s_sub_u32 s[s_q_rows+2], s[s_q_rows+2], 1
  s_mul_i32 s[s_q_rows+2], s[s_q_rows+2], s[s_q_token]
  s_add_u32 s[s_q_rows+2], s[s_q_rows+2], 0x100
  s_and_b32 s[s_q_rows+1], s[s_q_rows+1], 0xffff
  s_mov_b32 s[s_q_rows+3], 0x27000
  .set v_queries, 6
  .set v_q_at, 5
  v_mul_lo_u32 v[v_q_at], v[v_row], s[s_q_token]
  v_lshl_add_u32 v[v_q_at], v[v_upper], 4, v[v_q_at]
  buffer_load_dwordx4 v[v_queries:v_queries+3], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen
  buffer_load_dwordx4 v[v_queries+4:v_queries+7], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:32
  buffer_load_dwordx4 v[v_queries+8:v_queries+11], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:64
  buffer_load_dwordx4 v[v_queries+12:v_queries+15], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:96
  buffer_load_dwordx4 v[v_queries+16:v_queries+19], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:128
  buffer_load_dwordx4 v[v_queries+20:v_queries+23], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:160
  buffer_load_dwordx4 v[v_queries+24:v_queries+27], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:192
  buffer_load_dwordx4 v[v_queries+28:v_queries+31], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:224
  s_waitcnt vmcnt(0)
  v_and_b32 v[v_queries], s[s_q_keep], v[v_queries]
  v_xor_b32 v[v_queries], s[s_q_sign], v[v_queries]
  v_and_b32 v[v_queries+1], s[s_q_keep], v[v_queries+1]
  v_xor_b32 v[v_queries+1], s[s_q_sign], v[v_queries+1]
  v_and_b32 v[v_queries+2], s[s_q_keep], v[v_queries+2]
  v_xor_b32 v[v_queries+2], s[s_q_sign], v[v_queries+2]
  v_and_b32 v[v_queries+3], s[s_q_keep], v[v_queries+3]
  v_xor_b32 v[v_queries+3], s[s_q_sign], v[v_queries+3]
  v_and_b32 v[v_queries+4], s[s_q_keep], v[v_queries+4]
  v_xor_b32 v[v_queries+4], s[s_q_sign], v[v_queries+4]
  v_and_b32 v[v_queries+5], s[s_q_keep], v[v_queries+5]
  v_xor_b32 v[v_queries+5], s[s_q_sign], v[v_queries+5]
  v_and_b32 v[v_queries+6], s[s_q_keep], v[v_queries+6]
  v_xor_b32 v[v_queries+6], s[s_q_sign], v[v_queries+6]
  v_and_b32 v[v_queries+7], s[s_q_keep], v[v_queries+7]
  v_xor_b32 v[v_queries+7], s[s_q_sign], v[v_queries+7]
  v_and_b32 v[v_queries+8], s[s_q_keep], v[v_queries+8]
  v_xor_b32 v[v_queries+8], s[s_q_sign], v[v_queries+8]
  v_and_b32 v[v_queries+9], s[s_q_keep], v[v_queries+9]
  v_xor_b32 v[v_queries+9], s[s_q_sign], v[v_queries+9]
  v_and_b32 v[v_queries+10], s[s_q_keep], v[v_queries+10]
  v_xor_b32 v[v_queries+10], s[s_q_sign], v[v_queries+10]
  v_and_b32 v[v_queries+11], s[s_q_keep], v[v_queries+11]
  v_xor_b32 v[v_queries+11], s[s_q_sign], v[v_queries+11]
  v_and_b32 v[v_queries+12], s[s_q_keep], v[v_queries+12]
  v_xor_b32 v[v_queries+12], s[s_q_sign], v[v_queries+12]
  v_and_b32 v[v_queries+13], s[s_q_keep], v[v_queries+13]
  v_xor_b32 v[v_queries+13], s[s_q_sign], v[v_queries+13]
  v_and_b32 v[v_queries+14], s[s_q_keep], v[v_queries+14]
  v_xor_b32 v[v_queries+14], s[s_q_sign], v[v_queries+14]
  v_and_b32 v[v_queries+15], s[s_q_keep], v[v_queries+15]
  v_xor_b32 v[v_queries+15], s[s_q_sign], v[v_queries+15]
  v_and_b32 v[v_queries+16], s[s_q_keep], v[v_queries+16]
  v_xor_b32 v[v_queries+16], s[s_q_sign], v[v_queries+16]
  v_and_b32 v[v_queries+17], s[s_q_keep], v[v_queries+17]
  v_xor_b32 v[v_queries+17], s[s_q_sign], v[v_queries+17]
  v_and_b32 v[v_queries+18], s[s_q_keep], v[v_queries+18]
  v_xor_b32 v[v_queries+18], s[s_q_sign], v[v_queries+18]
  v_and_b32 v[v_queries+19], s[s_q_keep], v[v_queries+19]
  v_xor_b32 v[v_queries+19], s[s_q_sign], v[v_queries+19]
  v_and_b32 v[v_queries+20], s[s_q_keep], v[v_queries+20]
  v_xor_b32 v[v_queries+20], s[s_q_sign], v[v_queries+20]
  v_and_b32 v[v_queries+21], s[s_q_keep], v[v_queries+21]
  v_xor_b32 v[v_queries+21], s[s_q_sign], v[v_queries+21]
  v_and_b32 v[v_queries+22], s[s_q_keep], v[v_queries+22]
  v_xor_b32 v[v_queries+22], s[s_q_sign], v[v_queries+22]
  v_and_b32 v[v_queries+23], s[s_q_keep], v[v_queries+23]
  v_xor_b32 v[v_queries+23], s[s_q_sign], v[v_queries+23]
  v_and_b32 v[v_queries+24], s[s_q_keep], v[v_queries+24]
  v_xor_b32 v[v_queries+24], s[s_q_sign], v[v_queries+24]
  v_and_b32 v[v_queries+25], s[s_q_keep], v[v_queries+25]
  v_xor_b32 v[v_queries+25], s[s_q_sign], v[v_queries+25]
  v_and_b32 v[v_queries+26], s[s_q_keep], v[v_queries+26]
  v_xor_b32 v[v_queries+26], s[s_q_sign], v[v_queries+26]
  v_and_b32 v[v_queries+27], s[s_q_keep], v[v_queries+27]
  v_xor_b32 v[v_queries+27], s[s_q_sign], v[v_queries+27]
  v_and_b32 v[v_queries+28], s[s_q_keep], v[v_queries+28]
  v_xor_b32 v[v_queries+28], s[s_q_sign], v[v_queries+28]
  v_and_b32 v[v_queries+29], s[s_q_keep], v[v_queries+29]
  v_xor_b32 v[v_queries+29], s[s_q_sign], v[v_queries+29]
  v_and_b32 v[v_queries+30], s[s_q_keep], v[v_queries+30]
  v_xor_b32 v[v_queries+30], s[s_q_sign], v[v_queries+30]
  v_and_b32 v[v_queries+31], s[s_q_keep], v[v_queries+31]
  v_xor_b32 v[v_queries+31], s[s_q_sign], v[v_queries+31]

  // Keys: places in memory, and in LDS to write and to read
  .set s_k_place, 48
  .set s_batch_place, 50
  .set s_high, 47
  s_mul_i32 s[s_high], s[s_group+2], s[s_k_batch+1]
  s_mul_hi_u32 s[s_batch_place+1], s[s_group+2], s[s_k_batch]
  s_add_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_high]
  s_mul_i32 s[s_batch_place], s[s_group+2], s[s_k_batch]
  s_add_u32 s[s_batch_place], s[s_batch_place], s[s_k]
  s_addc_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_k+1]
  s_mul_i32 s[s_k_place], s[s_kv_head], s[s_k_head]
  s_mul_hi_u32 s[s_k_place+1], s[s_kv_head], s[s_k_head]
  s_add_u32 s[s_k_place], s[s_k_place], s[s_batch_place]
  s_addc_u32 s[s_k_place+1], s[s_k_place+1], s[s_batch_place+1]
  .set s_k_rows, 52
  .set s_k_left, 47
  .set s_k_step, 50
  s_lshl_b32 s[s_k_step], s[s_k_token], 6
  s_sub_u32 s[s_k_rows], s[s_k_place], s[s_k_step]
  s_subb_u32 s[s_k_rows+1], s[s_k_place+1], 0
  s_and_b32 s[s_k_rows+1], s[s_k_rows+1], 0xffff
  s_mov_b32 s[s_k_rows+3], 0x27000
  s_add_i32 s[s_k_left], s[s_seq_k], 64
  .set v_key_at, 5
  .set v_write_key, 38
  .set s_k_step1, 48
  .set s_k_step2, 49
  .set s_k_step3, 51
  s_lshl_b32 s[s_k_step1], s[s_k_token], 4
  s_lshl_b32 s[s_k_step2], s[s_k_token], 5
  s_add_u32 s[s_k_step3], s[s_k_step1], s[s_k_step2]
  .set v_chunk, 39
  .set v_key_row, 40
  v_and_b32 v[v_chunk], 15, v[v_thread]
  v_lshrrev_b32 v[v_key_row], 4, v[v_thread]
  v_mul_lo_u32 v[v_key_at], v[v_key_row], s[s_k_token]
  v_lshl_add_u32 v[v_key_at], v[v_chunk], 4, v[v_key_at]
  v_xor_b32 v[v_chunk], v[v_key_row], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_write_key], v[v_key_row], 8, v[v_chunk]
  .set v_read_key, 40
  .set v_chunk, 39
  v_add_u32 v[v_chunk], 0, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 2, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+1], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 4, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+2], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 6, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+3], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 8, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+4], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 10, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+5], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 12, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+6], v[v_lane], 8, v[v_chunk]
  v_add_u32 v[v_chunk], 14, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_lane], v[v_chunk]
  v_and_b32 v[v_chunk], 15, v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_key+7], v[v_lane], 8, v[v_chunk]
  .set v_staged_keys, 48

  // Values: places in memory, and in LDS to write and to read
  .set s_v_place, 56
  .set s_batch_place, 58
  .set s_high, 60
  s_mul_i32 s[s_high], s[s_group+2], s[s_v_batch+1]
  s_mul_hi_u32 s[s_batch_place+1], s[s_group+2], s[s_v_batch]
  s_add_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_high]
  s_mul_i32 s[s_batch_place], s[s_group+2], s[s_v_batch]
  s_add_u32 s[s_batch_place], s[s_batch_place], s[s_v]
  s_addc_u32 s[s_batch_place+1], s[s_batch_place+1], s[s_v+1]
  s_mul_i32 s[s_v_place], s[s_kv_head], s[s_v_head]
  s_mul_hi_u32 s[s_v_place+1], s[s_kv_head], s[s_v_head]
  s_add_u32 s[s_v_place], s[s_v_place], s[s_batch_place]
  s_addc_u32 s[s_v_place+1], s[s_v_place+1], s[s_batch_place+1]
  .set s_v_rows, 60
  .set s_v_left, 58
  .set s_v_step, 59
  s_lshl_b32 s[s_v_step], s[s_v_token], 6
  s_sub_u32 s[s_v_rows], s[s_v_place], s[s_v_step]
  s_subb_u32 s[s_v_rows+1], s[s_v_place+1], 0
  s_and_b32 s[s_v_rows+1], s[s_v_rows+1], 0xffff
  s_mov_b32 s[s_v_rows+3], 0x27000
  s_add_i32 s[s_v_left], s[s_seq_k], 64
  .set v_value_at, 39
  .set v_write_value, 64
  .set s_v_step1, 56
  .set s_v_step2, 57
  .set s_v_step3, 64
  s_mov_b32 s[s_v_step1], s[s_v_token]
  s_lshl_b32 s[s_v_step2], s[s_v_token], 1
  s_add_u32 s[s_v_step3], s[s_v_step1], s[s_v_step2]
  .set v_dims, 65
  .set v_group, 66
  .set v_chunk, 67
  v_bfe_u32 v[v_dims], v[v_thread], 4, 1
  v_lshlrev_b32 v[v_dims], 3, v[v_dims]
  v_and_b32 v[v_chunk], 7, v[v_thread]
  v_or_b32 v[v_dims], v[v_chunk], v[v_dims]
  v_bfe_u32 v[v_group], v[v_thread], 3, 1
  v_lshlrev_b32 v[v_write_value], 3, v[v_group]
  v_lshl_add_u32 v[v_group], v[v_group], 1, v[v_upper]
  v_lshlrev_b32 v[v_group], 2, v[v_group]
  .set s_wave_keys, 65
  s_lshl_b32 s[s_wave_keys], s[s_wave], 4
  v_add_u32 v[v_group], s[s_wave_keys], v[v_group]
  v_mul_lo_u32 v[v_value_at], v[v_group], s[s_v_token]
  v_lshl_add_u32 v[v_value_at], v[v_dims], 4, v[v_value_at]
  .set s_wave_chunk, 65
  s_lshl_b32 s[s_wave_chunk], s[s_wave], 1
  v_add_u32 v[v_group], s[s_wave_chunk], v[v_upper]
  v_xor_b32 v[v_chunk], v[v_group], v[v_chunk]
  v_lshl_add_u32 v[v_write_value], v[v_chunk], 4, v[v_write_value]
  v_lshl_add_u32 v[v_write_value], v[v_dims], 10, v[v_write_value]
  .set v_read_value, 66
  .set v_chunk, 65
  .set v_turn, 70
  v_lshrrev_b32 v[v_turn], 3, v[v_lane]
  v_lshrrev_b32 v[v_chunk], 0, v[v_lane]
  v_xor_b32 v[v_turn], v[v_chunk], v[v_turn]
  v_and_b32 v[v_turn], 7, v[v_turn]
  v_add_u32 v[v_chunk], 0, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_turn], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_value], v[v_lane], 7, v[v_chunk]
  v_add_u32 v[v_chunk], 2, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_turn], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_value+1], v[v_lane], 7, v[v_chunk]
  v_add_u32 v[v_chunk], 4, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_turn], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_value+2], v[v_lane], 7, v[v_chunk]
  v_add_u32 v[v_chunk], 6, v[v_upper]
  v_xor_b32 v[v_chunk], v[v_turn], v[v_chunk]
  v_lshlrev_b32 v[v_chunk], 4, v[v_chunk]
  v_lshl_add_u32 v[v_read_value+3], v[v_lane], 7, v[v_chunk]
  .set v_staged_values, 70

  // Nothing is summed yet
  .set v_top, 2
  .set v_total, 86
  .set v_factor, 88
  .set v_minus_top, 90
  .set v_peak, 1
  v_mov_b32 v[v_factor], s[s_scale]
  v_mov_b32 v[v_factor+1], s[s_scale]
  v_mov_b32 v[v_top], 0xff7fffff
  v_mov_b32 v[v_minus_top], 0x7f7fffff
  v_mov_b32 v[v_minus_top+1], 0x7f7fffff
  v_mov_b32 v[v_total], 0
  v_mov_b32 v[v_total+1], 0
  .set s_rounding, 42
  s_mov_b32 s[s_rounding], 0x8000
  .set v_other_half, 65
  v_and_b32 v[v_other_half], 63, v[v_thread]
  v_xor_b32 v[v_other_half], 32, v[v_other_half]
  v_lshlrev_b32 v[v_other_half], 2, v[v_other_half]
  .set v_sums, 92
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
  v_mov_b32 v[v_sums+16], 0
  v_mov_b32 v[v_sums+17], 0
  v_mov_b32 v[v_sums+18], 0
  v_mov_b32 v[v_sums+19], 0
  v_mov_b32 v[v_sums+20], 0
  v_mov_b32 v[v_sums+21], 0
  v_mov_b32 v[v_sums+22], 0
  v_mov_b32 v[v_sums+23], 0
  v_mov_b32 v[v_sums+24], 0
  v_mov_b32 v[v_sums+25], 0
  v_mov_b32 v[v_sums+26], 0
  v_mov_b32 v[v_sums+27], 0
  v_mov_b32 v[v_sums+28], 0
  v_mov_b32 v[v_sums+29], 0
  v_mov_b32 v[v_sums+30], 0
  v_mov_b32 v[v_sums+31], 0
  v_mov_b32 v[v_sums+32], 0
  v_mov_b32 v[v_sums+33], 0
  v_mov_b32 v[v_sums+34], 0
  v_mov_b32 v[v_sums+35], 0
  v_mov_b32 v[v_sums+36], 0
  v_mov_b32 v[v_sums+37], 0
  v_mov_b32 v[v_sums+38], 0
  v_mov_b32 v[v_sums+39], 0
  v_mov_b32 v[v_sums+40], 0
  v_mov_b32 v[v_sums+41], 0
  v_mov_b32 v[v_sums+42], 0
  v_mov_b32 v[v_sums+43], 0
  v_mov_b32 v[v_sums+44], 0
  v_mov_b32 v[v_sums+45], 0
  v_mov_b32 v[v_sums+46], 0
  v_mov_b32 v[v_sums+47], 0
  v_mov_b32 v[v_sums+48], 0
  v_mov_b32 v[v_sums+49], 0
  v_mov_b32 v[v_sums+50], 0
  v_mov_b32 v[v_sums+51], 0
  v_mov_b32 v[v_sums+52], 0
  v_mov_b32 v[v_sums+53], 0
  v_mov_b32 v[v_sums+54], 0
  v_mov_b32 v[v_sums+55], 0
  v_mov_b32 v[v_sums+56], 0
  v_mov_b32 v[v_sums+57], 0
  v_mov_b32 v[v_sums+58], 0
  v_mov_b32 v[v_sums+59], 0
  v_mov_b32 v[v_sums+60], 0
  v_mov_b32 v[v_sums+61], 0
  v_mov_b32 v[v_sums+62], 0
  v_mov_b32 v[v_sums+63], 0
  .set v_fragment0, 156
  .set v_fragment1, 160
  .set v_fragment2, 164
  .set v_fragment3, 168
  .set v_fragment4, 172
  .set v_fragment5, 176
  .set v_scores0, 180
  .set v_scores1, 212
  .set v_turned0, 244
  .set v_turned1, 246
  .set v_turned_at, 248

  // Before the loop: the first tile's scores; the second tile's keys in LDS
  s_sub_i32 s[s_k_left], s[s_k_left], 64
  s_min_i32 s[s_k_rows+2], s[s_k_left], 64
  s_sub_i32 s[s_k_rows+2], s[s_k_rows+2], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x100
  s_cmp_gt_i32 s[s_k_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_step]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  buffer_load_dwordx4 v[v_staged_keys:v_staged_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_keys+4:v_staged_keys+7], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step1] offen
  buffer_load_dwordx4 v[v_staged_keys+8:v_staged_keys+11], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step2] offen
  buffer_load_dwordx4 v[v_staged_keys+12:v_staged_keys+15], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step3] offen
  s_waitcnt vmcnt(0)
  ds_write_b128 v[v_write_key], v[v_staged_keys:v_staged_keys+3] offset:0
  ds_write_b128 v[v_write_key], v[v_staged_keys+4:v_staged_keys+7] offset:4096
  ds_write_b128 v[v_write_key], v[v_staged_keys+8:v_staged_keys+11] offset:8192
  ds_write_b128 v[v_write_key], v[v_staged_keys+12:v_staged_keys+15] offset:12288
  s_sub_i32 s[s_k_left], s[s_k_left], 64
  s_min_i32 s[s_k_rows+2], s[s_k_left], 64
  s_sub_i32 s[s_k_rows+2], s[s_k_rows+2], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x100
  s_cmp_gt_i32 s[s_k_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_step]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  buffer_load_dwordx4 v[v_staged_keys:v_staged_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_keys+4:v_staged_keys+7], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step1] offen
  buffer_load_dwordx4 v[v_staged_keys+8:v_staged_keys+11], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step2] offen
  buffer_load_dwordx4 v[v_staged_keys+12:v_staged_keys+15], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key] offset:8192
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+1]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+1] offset:8192
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+2]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+2] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries:v_queries+1], 0
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+2:v_queries+3], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+3]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries:v_queries+1], 0
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+2:v_queries+3], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+3] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+4:v_queries+5], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+6:v_queries+7], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+4]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+4:v_queries+5], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+6:v_queries+7], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+4] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4:v_fragment4+1], v[v_queries+8:v_queries+9], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+10:v_queries+11], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+5]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5:v_fragment5+1], v[v_queries+8:v_queries+9], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+10:v_queries+11], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+5] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries+12:v_queries+13], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+14:v_queries+15], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+6]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries+12:v_queries+13], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+14:v_queries+15], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+6] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+16:v_queries+17], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+18:v_queries+19], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+7]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+16:v_queries+17], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+18:v_queries+19], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+7] offset:8192
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4:v_fragment4+1], v[v_queries+20:v_queries+21], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+22:v_queries+23], v[v_scores0:v_scores0+15]
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5:v_fragment5+1], v[v_queries+20:v_queries+21], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+22:v_queries+23], v[v_scores0+16:v_scores0+31]
  s_waitcnt lgkmcnt(3)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries+24:v_queries+25], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+26:v_queries+27], v[v_scores0:v_scores0+15]
  s_waitcnt lgkmcnt(2)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries+24:v_queries+25], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+26:v_queries+27], v[v_scores0+16:v_scores0+31]
  s_waitcnt lgkmcnt(1)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+28:v_queries+29], v[v_scores0:v_scores0+15]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+30:v_queries+31], v[v_scores0:v_scores0+15]
  s_waitcnt lgkmcnt(0)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+28:v_queries+29], v[v_scores0+16:v_scores0+31]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+30:v_queries+31], v[v_scores0+16:v_scores0+31]
  .set s_last_of_tile, 65
  s_add_u32 s[s_last_of_tile], s[s_key], 63
  s_cmp_le_i32 s[s_last_of_tile], s[s_wave_sees]
  s_cbranch_scc1 attention_bf16.after.1

  // Mask
  v_subrev_u32 v[v_turned0], s[s_key], v[v_sees]
  v_mov_b32 v[v_turned0+1], 0xff800000
  .set s_seen, 68
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 0
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 1
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 2
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 3
  v_cndmask_b32_e64 v[v_scores0], v[v_turned0+1], v[v_scores0], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+1], v[v_turned0+1], v[v_scores0+1], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+2], v[v_turned0+1], v[v_scores0+2], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+3], v[v_turned0+1], v[v_scores0+3], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 8
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 9
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 10
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 11
  v_cndmask_b32_e64 v[v_scores0+4], v[v_turned0+1], v[v_scores0+4], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+5], v[v_turned0+1], v[v_scores0+5], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+6], v[v_turned0+1], v[v_scores0+6], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+7], v[v_turned0+1], v[v_scores0+7], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 16
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 17
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 18
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 19
  v_cndmask_b32_e64 v[v_scores0+8], v[v_turned0+1], v[v_scores0+8], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+9], v[v_turned0+1], v[v_scores0+9], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+10], v[v_turned0+1], v[v_scores0+10], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+11], v[v_turned0+1], v[v_scores0+11], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 24
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 25
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 26
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 27
  v_cndmask_b32_e64 v[v_scores0+12], v[v_turned0+1], v[v_scores0+12], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+13], v[v_turned0+1], v[v_scores0+13], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+14], v[v_turned0+1], v[v_scores0+14], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+15], v[v_turned0+1], v[v_scores0+15], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 32
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 33
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 34
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 35
  v_cndmask_b32_e64 v[v_scores0+16], v[v_turned0+1], v[v_scores0+16], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+17], v[v_turned0+1], v[v_scores0+17], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+18], v[v_turned0+1], v[v_scores0+18], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+19], v[v_turned0+1], v[v_scores0+19], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 40
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 41
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 42
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 43
  v_cndmask_b32_e64 v[v_scores0+20], v[v_turned0+1], v[v_scores0+20], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+21], v[v_turned0+1], v[v_scores0+21], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+22], v[v_turned0+1], v[v_scores0+22], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+23], v[v_turned0+1], v[v_scores0+23], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 48
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 49
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 50
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 51
  v_cndmask_b32_e64 v[v_scores0+24], v[v_turned0+1], v[v_scores0+24], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+25], v[v_turned0+1], v[v_scores0+25], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+26], v[v_turned0+1], v[v_scores0+26], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+27], v[v_turned0+1], v[v_scores0+27], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 56
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 57
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 58
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 59
  v_cndmask_b32_e64 v[v_scores0+28], v[v_turned0+1], v[v_scores0+28], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+29], v[v_turned0+1], v[v_scores0+29], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+30], v[v_turned0+1], v[v_scores0+30], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+31], v[v_turned0+1], v[v_scores0+31], s[s_seen+6:s_seen+7]
attention_bf16.after.1:
  s_add_u32 s[s_key], s[s_key], 64
  s_nop 4
  v_max3_f32 v[v_peak], v[v_scores0], v[v_scores0+1], v[v_scores0+2]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+3], v[v_scores0+4]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+5], v[v_scores0+6]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+7], v[v_scores0+8]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+9], v[v_scores0+10]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+11], v[v_scores0+12]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+13], v[v_scores0+14]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+15], v[v_scores0+16]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+17], v[v_scores0+18]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+19], v[v_scores0+20]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+21], v[v_scores0+22]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+23], v[v_scores0+24]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+25], v[v_scores0+26]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+27], v[v_scores0+28]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+29], v[v_scores0+30]
  v_max_f32 v[v_peak], v[v_peak], v[v_scores0+31]
  s_barrier
  s_waitcnt vmcnt(0)
  ds_write_b128 v[v_write_key], v[v_staged_keys:v_staged_keys+3] offset:0
  ds_write_b128 v[v_write_key], v[v_staged_keys+4:v_staged_keys+7] offset:4096
  ds_write_b128 v[v_write_key], v[v_staged_keys+8:v_staged_keys+11] offset:8192
  ds_write_b128 v[v_write_key], v[v_staged_keys+12:v_staged_keys+15] offset:12288
  s_sub_i32 s[s_v_left], s[s_v_left], 64
  s_min_i32 s[s_v_rows+2], s[s_v_left], 64
  s_sub_i32 s[s_v_rows+2], s[s_v_rows+2], 1
  s_mul_i32 s[s_v_rows+2], s[s_v_rows+2], s[s_v_token]
  s_add_u32 s[s_v_rows+2], s[s_v_rows+2], 0x100
  s_cmp_gt_i32 s[s_v_left], 0
  s_cselect_b32 s[s_v_rows+2], s[s_v_rows+2], 0
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_v_step]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], 0
  buffer_load_dwordx4 v[v_staged_values:v_staged_values+3], v[v_value_at], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_values+4:v_staged_values+7], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step1] offen
  buffer_load_dwordx4 v[v_staged_values+8:v_staged_values+11], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step2] offen
  buffer_load_dwordx4 v[v_staged_values+12:v_staged_values+15], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step3] offen
  s_sub_i32 s[s_k_left], s[s_k_left], 64
  s_min_i32 s[s_k_rows+2], s[s_k_left], 64
  s_sub_i32 s[s_k_rows+2], s[s_k_rows+2], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x100
  s_cmp_gt_i32 s[s_k_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_step]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  buffer_load_dwordx4 v[v_staged_keys:v_staged_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_keys+4:v_staged_keys+7], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step1] offen
  buffer_load_dwordx4 v[v_staged_keys+8:v_staged_keys+11], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step2] offen
  buffer_load_dwordx4 v[v_staged_keys+12:v_staged_keys+15], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier

  // The loop: two tiles
attention_bf16.tiles.2:

  // The next tile's scores, beside shares; values to LDS
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key] offset:8192
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+1]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+1] offset:8192
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+2]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+2] offset:8192
  .set v_excess, 250
  v_sub_f32 v[v_excess], v[v_peak], v[v_top]
  v_mul_f32 v[v_excess], v[v_factor], v[v_excess]
  v_cmp_lt_f32 vcc, 0x41000000, v[v_excess]
  s_cbranch_vccz attention_bf16.after.3

  // Move the references up
  .set v_others, 250
  ds_bpermute_b32 v[v_others], v[v_other_half], v[v_peak]
  s_waitcnt lgkmcnt(0)
  v_max_f32 v[v_peak], v[v_peak], v[v_others]
  v_max_f32 v[v_peak], v[v_peak], v[v_top]
  v_sub_f32 v[v_others], v[v_top], v[v_peak]
  v_mul_f32 v[v_others], v[v_factor], v[v_others]
  v_exp_f32 v[v_others], v[v_others]
  v_mov_b32 v[v_top], v[v_peak]
  v_mul_f32 v[v_minus_top], -1.0, v[v_peak]
  v_pk_mul_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums:v_sums+1], v[v_sums:v_sums+1], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+2:v_sums+3], v[v_sums+2:v_sums+3], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+4:v_sums+5], v[v_sums+4:v_sums+5], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+6:v_sums+7], v[v_sums+6:v_sums+7], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+8:v_sums+9], v[v_sums+8:v_sums+9], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+10:v_sums+11], v[v_sums+10:v_sums+11], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+12:v_sums+13], v[v_sums+12:v_sums+13], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+14:v_sums+15], v[v_sums+14:v_sums+15], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+16:v_sums+17], v[v_sums+16:v_sums+17], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+18:v_sums+19], v[v_sums+18:v_sums+19], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+20:v_sums+21], v[v_sums+20:v_sums+21], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+22:v_sums+23], v[v_sums+22:v_sums+23], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+24:v_sums+25], v[v_sums+24:v_sums+25], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+26:v_sums+27], v[v_sums+26:v_sums+27], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+28:v_sums+29], v[v_sums+28:v_sums+29], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+30:v_sums+31], v[v_sums+30:v_sums+31], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+32:v_sums+33], v[v_sums+32:v_sums+33], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+34:v_sums+35], v[v_sums+34:v_sums+35], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+36:v_sums+37], v[v_sums+36:v_sums+37], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+38:v_sums+39], v[v_sums+38:v_sums+39], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+40:v_sums+41], v[v_sums+40:v_sums+41], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+42:v_sums+43], v[v_sums+42:v_sums+43], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+44:v_sums+45], v[v_sums+44:v_sums+45], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+46:v_sums+47], v[v_sums+46:v_sums+47], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+48:v_sums+49], v[v_sums+48:v_sums+49], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+50:v_sums+51], v[v_sums+50:v_sums+51], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+52:v_sums+53], v[v_sums+52:v_sums+53], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+54:v_sums+55], v[v_sums+54:v_sums+55], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+56:v_sums+57], v[v_sums+56:v_sums+57], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+58:v_sums+59], v[v_sums+58:v_sums+59], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+60:v_sums+61], v[v_sums+60:v_sums+61], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+62:v_sums+63], v[v_sums+62:v_sums+63], v[v_others:v_others+1] op_sel_hi:[1,0]
attention_bf16.after.3:
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0:v_fragment0+1], v[v_queries:v_queries+1], 0
  v_pk_add_f32 v[v_scores0:v_scores0+1], v[v_scores0:v_scores0+1], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+2:v_scores0+3], v[v_scores0+2:v_scores0+3], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0:v_scores0+1], v[v_scores0:v_scores0+1], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+2:v_queries+3], v[v_scores1:v_scores1+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+3]
  v_pk_mul_f32 v[v_scores0+2:v_scores0+3], v[v_scores0+2:v_scores0+3], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores0], v[v_scores0]
  v_exp_f32 v[v_scores0+1], v[v_scores0+1]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1:v_fragment1+1], v[v_queries:v_queries+1], 0
  v_exp_f32 v[v_scores0+2], v[v_scores0+2]
  v_exp_f32 v[v_scores0+3], v[v_scores0+3]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0:v_scores0+1]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+2:v_queries+3], v[v_scores1+16:v_scores1+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+3] offset:8192
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+2:v_scores0+3]
  v_add_u32 v[v_scores0], s[s_rounding], v[v_scores0]
  v_add_u32 v[v_scores0+1], s[s_rounding], v[v_scores0+1]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2:v_fragment2+1], v[v_queries+4:v_queries+5], v[v_scores1:v_scores1+15]
  v_perm_b32 v[v_scores0], v[v_scores0+1], v[v_scores0], s[s_high_halves]
  v_add_u32 v[v_scores0+2], s[s_rounding], v[v_scores0+2]
  v_add_u32 v[v_scores0+3], s[s_rounding], v[v_scores0+3]
  v_perm_b32 v[v_scores0+1], v[v_scores0+3], v[v_scores0+2], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+6:v_queries+7], v[v_scores1:v_scores1+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+4]
  v_pk_add_f32 v[v_scores0+4:v_scores0+5], v[v_scores0+4:v_scores0+5], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+6:v_scores0+7], v[v_scores0+6:v_scores0+7], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+4:v_scores0+5], v[v_scores0+4:v_scores0+5], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3:v_fragment3+1], v[v_queries+4:v_queries+5], v[v_scores1+16:v_scores1+31]
  v_pk_mul_f32 v[v_scores0+6:v_scores0+7], v[v_scores0+6:v_scores0+7], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores0+4], v[v_scores0+4]
  v_exp_f32 v[v_scores0+5], v[v_scores0+5]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+6:v_queries+7], v[v_scores1+16:v_scores1+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+4] offset:8192
  v_exp_f32 v[v_scores0+6], v[v_scores0+6]
  v_exp_f32 v[v_scores0+7], v[v_scores0+7]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+4:v_scores0+5]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment4:v_fragment4+1], v[v_queries+8:v_queries+9], v[v_scores1:v_scores1+15]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+6:v_scores0+7]
  v_add_u32 v[v_scores0+4], s[s_rounding], v[v_scores0+4]
  v_add_u32 v[v_scores0+5], s[s_rounding], v[v_scores0+5]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+10:v_queries+11], v[v_scores1:v_scores1+15]
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+5]
  v_perm_b32 v[v_scores0+2], v[v_scores0+5], v[v_scores0+4], s[s_high_halves]
  v_add_u32 v[v_scores0+6], s[s_rounding], v[v_scores0+6]
  v_add_u32 v[v_scores0+7], s[s_rounding], v[v_scores0+7]
  v_perm_b32 v[v_scores0+3], v[v_scores0+7], v[v_scores0+6], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment5:v_fragment5+1], v[v_queries+8:v_queries+9], v[v_scores1+16:v_scores1+31]
  v_pk_add_f32 v[v_scores0+8:v_scores0+9], v[v_scores0+8:v_scores0+9], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+10:v_scores0+11], v[v_scores0+10:v_scores0+11], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+8:v_scores0+9], v[v_scores0+8:v_scores0+9], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+10:v_queries+11], v[v_scores1+16:v_scores1+31]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+5] offset:8192
  v_pk_mul_f32 v[v_scores0+10:v_scores0+11], v[v_scores0+10:v_scores0+11], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores0+8], v[v_scores0+8]
  v_exp_f32 v[v_scores0+9], v[v_scores0+9]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0:v_fragment0+1], v[v_queries+12:v_queries+13], v[v_scores1:v_scores1+15]
  v_exp_f32 v[v_scores0+10], v[v_scores0+10]
  v_exp_f32 v[v_scores0+11], v[v_scores0+11]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+8:v_scores0+9]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+14:v_queries+15], v[v_scores1:v_scores1+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+6]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+10:v_scores0+11]
  v_add_u32 v[v_scores0+8], s[s_rounding], v[v_scores0+8]
  v_add_u32 v[v_scores0+9], s[s_rounding], v[v_scores0+9]
  v_perm_b32 v[v_scores0+4], v[v_scores0+9], v[v_scores0+8], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1:v_fragment1+1], v[v_queries+12:v_queries+13], v[v_scores1+16:v_scores1+31]
  v_add_u32 v[v_scores0+10], s[s_rounding], v[v_scores0+10]
  v_add_u32 v[v_scores0+11], s[s_rounding], v[v_scores0+11]
  v_perm_b32 v[v_scores0+5], v[v_scores0+11], v[v_scores0+10], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+14:v_queries+15], v[v_scores1+16:v_scores1+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+6] offset:8192
  v_pk_add_f32 v[v_scores0+12:v_scores0+13], v[v_scores0+12:v_scores0+13], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+14:v_scores0+15], v[v_scores0+14:v_scores0+15], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+12:v_scores0+13], v[v_scores0+12:v_scores0+13], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2:v_fragment2+1], v[v_queries+16:v_queries+17], v[v_scores1:v_scores1+15]
  v_pk_mul_f32 v[v_scores0+14:v_scores0+15], v[v_scores0+14:v_scores0+15], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores0+12], v[v_scores0+12]
  v_exp_f32 v[v_scores0+13], v[v_scores0+13]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+18:v_queries+19], v[v_scores1:v_scores1+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+7]
  v_exp_f32 v[v_scores0+14], v[v_scores0+14]
  v_exp_f32 v[v_scores0+15], v[v_scores0+15]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+12:v_scores0+13]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3:v_fragment3+1], v[v_queries+16:v_queries+17], v[v_scores1+16:v_scores1+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+14:v_scores0+15]
  v_add_u32 v[v_scores0+12], s[s_rounding], v[v_scores0+12]
  v_add_u32 v[v_scores0+13], s[s_rounding], v[v_scores0+13]
  v_perm_b32 v[v_scores0+6], v[v_scores0+13], v[v_scores0+12], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+18:v_queries+19], v[v_scores1+16:v_scores1+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+7] offset:8192
  v_add_u32 v[v_scores0+14], s[s_rounding], v[v_scores0+14]
  v_add_u32 v[v_scores0+15], s[s_rounding], v[v_scores0+15]
  v_perm_b32 v[v_scores0+7], v[v_scores0+15], v[v_scores0+14], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment4:v_fragment4+1], v[v_queries+20:v_queries+21], v[v_scores1:v_scores1+15]
  s_waitcnt vmcnt(4)
  v_perm_b32 v[v_turned0], v[v_staged_values+4], v[v_staged_values], s[s_low_halves]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+12], v[v_staged_values+8], s[s_low_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+22:v_queries+23], v[v_scores1:v_scores1+15]
  v_xor_b32 v[v_turned_at], 0, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16384
  v_perm_b32 v[v_turned1], v[v_staged_values+4], v[v_staged_values], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment5:v_fragment5+1], v[v_queries+20:v_queries+21], v[v_scores1+16:v_scores1+31]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+12], v[v_staged_values+8], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 16, v[v_write_value]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:16512
  v_perm_b32 v[v_turned0], v[v_staged_values+5], v[v_staged_values+1], s[s_low_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+22:v_queries+23], v[v_scores1+16:v_scores1+31]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+13], v[v_staged_values+9], s[s_low_halves]
  v_xor_b32 v[v_turned_at], 32, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16640
  s_waitcnt lgkmcnt(6)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0:v_fragment0+1], v[v_queries+24:v_queries+25], v[v_scores1:v_scores1+15]
  v_perm_b32 v[v_turned1], v[v_staged_values+5], v[v_staged_values+1], s[s_high_halves]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+13], v[v_staged_values+9], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 48, v[v_write_value]
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+26:v_queries+27], v[v_scores1:v_scores1+15]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:16768
  v_perm_b32 v[v_turned0], v[v_staged_values+6], v[v_staged_values+2], s[s_low_halves]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+14], v[v_staged_values+10], s[s_low_halves]
  s_waitcnt lgkmcnt(6)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1:v_fragment1+1], v[v_queries+24:v_queries+25], v[v_scores1+16:v_scores1+31]
  v_xor_b32 v[v_turned_at], 64, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16896
  v_perm_b32 v[v_turned1], v[v_staged_values+6], v[v_staged_values+2], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+26:v_queries+27], v[v_scores1+16:v_scores1+31]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+14], v[v_staged_values+10], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 0x50, v[v_write_value]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:17024
  v_perm_b32 v[v_turned0], v[v_staged_values+7], v[v_staged_values+3], s[s_low_halves]
  s_waitcnt lgkmcnt(7)
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2:v_fragment2+1], v[v_queries+28:v_queries+29], v[v_scores1:v_scores1+15]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+15], v[v_staged_values+11], s[s_low_halves]
  v_xor_b32 v[v_turned_at], 0x60, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:17152
  v_mfma_f32_32x32x8_bf16 v[v_scores1:v_scores1+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+30:v_queries+31], v[v_scores1:v_scores1+15]
  v_perm_b32 v[v_turned1], v[v_staged_values+7], v[v_staged_values+3], s[s_high_halves]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+15], v[v_staged_values+11], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 0x70, v[v_write_value]
  s_waitcnt lgkmcnt(7)
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3:v_fragment3+1], v[v_queries+28:v_queries+29], v[v_scores1+16:v_scores1+31]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:17280
  s_sub_i32 s[s_v_left], s[s_v_left], 64
  s_min_i32 s[s_v_rows+2], s[s_v_left], 64
  s_sub_i32 s[s_v_rows+2], s[s_v_rows+2], 1
  s_mul_i32 s[s_v_rows+2], s[s_v_rows+2], s[s_v_token]
  s_add_u32 s[s_v_rows+2], s[s_v_rows+2], 0x100
  s_cmp_gt_i32 s[s_v_left], 0
  s_cselect_b32 s[s_v_rows+2], s[s_v_rows+2], 0
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_v_step]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], 0
  v_mfma_f32_32x32x8_bf16 v[v_scores1+16:v_scores1+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+30:v_queries+31], v[v_scores1+16:v_scores1+31]
  buffer_load_dwordx4 v[v_staged_values:v_staged_values+3], v[v_value_at], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_values+4:v_staged_values+7], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step1] offen
  buffer_load_dwordx4 v[v_staged_values+8:v_staged_values+11], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step2] offen
  buffer_load_dwordx4 v[v_staged_values+12:v_staged_values+15], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier

  // Values, beside the other shares; keys to LDS
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value] offset:16384
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+2] offset:20480
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value] offset:24576
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value+2] offset:28672
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_value+1] offset:16384
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_value+3] offset:20480
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0:v_fragment0+1], v[v_scores0:v_scores0+1], v[v_sums:v_sums+15]
  v_pk_add_f32 v[v_scores0+16:v_scores0+17], v[v_scores0+16:v_scores0+17], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+18:v_scores0+19], v[v_scores0+18:v_scores0+19], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+16:v_scores0+17], v[v_scores0+16:v_scores0+17], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+18:v_scores0+19], v[v_scores0+18:v_scores0+19], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0+2:v_fragment0+3], v[v_scores0+2:v_scores0+3], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value+1] offset:24576
  v_exp_f32 v[v_scores0+16], v[v_scores0+16]
  v_exp_f32 v[v_scores0+17], v[v_scores0+17]
  v_exp_f32 v[v_scores0+18], v[v_scores0+18]
  v_exp_f32 v[v_scores0+19], v[v_scores0+19]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1:v_fragment1+1], v[v_scores0:v_scores0+1], v[v_sums+16:v_sums+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+16:v_scores0+17]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+18:v_scores0+19]
  v_add_u32 v[v_scores0+16], s[s_rounding], v[v_scores0+16]
  v_add_u32 v[v_scores0+17], s[s_rounding], v[v_scores0+17]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1+2:v_fragment1+3], v[v_scores0+2:v_scores0+3], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+3] offset:28672
  v_perm_b32 v[v_scores0+8], v[v_scores0+17], v[v_scores0+16], s[s_high_halves]
  v_add_u32 v[v_scores0+18], s[s_rounding], v[v_scores0+18]
  v_add_u32 v[v_scores0+19], s[s_rounding], v[v_scores0+19]
  v_perm_b32 v[v_scores0+9], v[v_scores0+19], v[v_scores0+18], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2:v_fragment2+1], v[v_scores0:v_scores0+1], v[v_sums+32:v_sums+47]
  v_pk_add_f32 v[v_scores0+20:v_scores0+21], v[v_scores0+20:v_scores0+21], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+22:v_scores0+23], v[v_scores0+22:v_scores0+23], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+20:v_scores0+21], v[v_scores0+20:v_scores0+21], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+22:v_scores0+23], v[v_scores0+22:v_scores0+23], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2+2:v_fragment2+3], v[v_scores0+2:v_scores0+3], v[v_sums+32:v_sums+47]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value+2] offset:16384
  v_exp_f32 v[v_scores0+20], v[v_scores0+20]
  v_exp_f32 v[v_scores0+21], v[v_scores0+21]
  v_exp_f32 v[v_scores0+22], v[v_scores0+22]
  v_exp_f32 v[v_scores0+23], v[v_scores0+23]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3:v_fragment3+1], v[v_scores0:v_scores0+1], v[v_sums+48:v_sums+63]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+20:v_scores0+21]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+22:v_scores0+23]
  v_add_u32 v[v_scores0+20], s[s_rounding], v[v_scores0+20]
  v_add_u32 v[v_scores0+21], s[s_rounding], v[v_scores0+21]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3+2:v_fragment3+3], v[v_scores0+2:v_scores0+3], v[v_sums+48:v_sums+63]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value] offset:20480
  v_perm_b32 v[v_scores0+10], v[v_scores0+21], v[v_scores0+20], s[s_high_halves]
  v_add_u32 v[v_scores0+22], s[s_rounding], v[v_scores0+22]
  v_add_u32 v[v_scores0+23], s[s_rounding], v[v_scores0+23]
  v_perm_b32 v[v_scores0+11], v[v_scores0+23], v[v_scores0+22], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment4:v_fragment4+1], v[v_scores0+4:v_scores0+5], v[v_sums:v_sums+15]
  v_pk_add_f32 v[v_scores0+24:v_scores0+25], v[v_scores0+24:v_scores0+25], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+26:v_scores0+27], v[v_scores0+26:v_scores0+27], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+24:v_scores0+25], v[v_scores0+24:v_scores0+25], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+26:v_scores0+27], v[v_scores0+26:v_scores0+27], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment4+2:v_fragment4+3], v[v_scores0+6:v_scores0+7], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_value+2] offset:24576
  v_exp_f32 v[v_scores0+24], v[v_scores0+24]
  v_exp_f32 v[v_scores0+25], v[v_scores0+25]
  v_exp_f32 v[v_scores0+26], v[v_scores0+26]
  v_exp_f32 v[v_scores0+27], v[v_scores0+27]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment5:v_fragment5+1], v[v_scores0+4:v_scores0+5], v[v_sums+16:v_sums+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+24:v_scores0+25]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+26:v_scores0+27]
  v_add_u32 v[v_scores0+24], s[s_rounding], v[v_scores0+24]
  v_add_u32 v[v_scores0+25], s[s_rounding], v[v_scores0+25]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment5+2:v_fragment5+3], v[v_scores0+6:v_scores0+7], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_value] offset:28672
  v_perm_b32 v[v_scores0+12], v[v_scores0+25], v[v_scores0+24], s[s_high_halves]
  v_add_u32 v[v_scores0+26], s[s_rounding], v[v_scores0+26]
  v_add_u32 v[v_scores0+27], s[s_rounding], v[v_scores0+27]
  v_perm_b32 v[v_scores0+13], v[v_scores0+27], v[v_scores0+26], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment0:v_fragment0+1], v[v_scores0+4:v_scores0+5], v[v_sums+32:v_sums+47]
  v_pk_add_f32 v[v_scores0+28:v_scores0+29], v[v_scores0+28:v_scores0+29], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores0+30:v_scores0+31], v[v_scores0+30:v_scores0+31], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+28:v_scores0+29], v[v_scores0+28:v_scores0+29], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores0+30:v_scores0+31], v[v_scores0+30:v_scores0+31], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment0+2:v_fragment0+3], v[v_scores0+6:v_scores0+7], v[v_sums+32:v_sums+47]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value+3] offset:16384
  v_exp_f32 v[v_scores0+28], v[v_scores0+28]
  v_exp_f32 v[v_scores0+29], v[v_scores0+29]
  v_exp_f32 v[v_scores0+30], v[v_scores0+30]
  v_exp_f32 v[v_scores0+31], v[v_scores0+31]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment1:v_fragment1+1], v[v_scores0+4:v_scores0+5], v[v_sums+48:v_sums+63]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+28:v_scores0+29]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores0+30:v_scores0+31]
  v_add_u32 v[v_scores0+28], s[s_rounding], v[v_scores0+28]
  v_add_u32 v[v_scores0+29], s[s_rounding], v[v_scores0+29]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment1+2:v_fragment1+3], v[v_scores0+6:v_scores0+7], v[v_sums+48:v_sums+63]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+1] offset:20480
  v_perm_b32 v[v_scores0+14], v[v_scores0+29], v[v_scores0+28], s[s_high_halves]
  v_add_u32 v[v_scores0+30], s[s_rounding], v[v_scores0+30]
  v_add_u32 v[v_scores0+31], s[s_rounding], v[v_scores0+31]
  v_perm_b32 v[v_scores0+15], v[v_scores0+31], v[v_scores0+30], s[s_high_halves]
  .set s_last_of_tile, 65
  s_add_u32 s[s_last_of_tile], s[s_key], 63
  s_cmp_le_i32 s[s_last_of_tile], s[s_wave_sees]
  s_cbranch_scc1 attention_bf16.after.4

  // Mask
  v_subrev_u32 v[v_turned0], s[s_key], v[v_sees]
  v_mov_b32 v[v_turned0+1], 0xff800000
  .set s_seen, 68
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 0
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 1
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 2
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 3
  v_cndmask_b32_e64 v[v_scores1], v[v_turned0+1], v[v_scores1], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+1], v[v_turned0+1], v[v_scores1+1], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+2], v[v_turned0+1], v[v_scores1+2], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+3], v[v_turned0+1], v[v_scores1+3], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 8
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 9
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 10
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 11
  v_cndmask_b32_e64 v[v_scores1+4], v[v_turned0+1], v[v_scores1+4], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+5], v[v_turned0+1], v[v_scores1+5], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+6], v[v_turned0+1], v[v_scores1+6], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+7], v[v_turned0+1], v[v_scores1+7], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 16
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 17
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 18
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 19
  v_cndmask_b32_e64 v[v_scores1+8], v[v_turned0+1], v[v_scores1+8], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+9], v[v_turned0+1], v[v_scores1+9], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+10], v[v_turned0+1], v[v_scores1+10], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+11], v[v_turned0+1], v[v_scores1+11], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 24
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 25
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 26
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 27
  v_cndmask_b32_e64 v[v_scores1+12], v[v_turned0+1], v[v_scores1+12], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+13], v[v_turned0+1], v[v_scores1+13], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+14], v[v_turned0+1], v[v_scores1+14], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+15], v[v_turned0+1], v[v_scores1+15], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 32
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 33
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 34
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 35
  v_cndmask_b32_e64 v[v_scores1+16], v[v_turned0+1], v[v_scores1+16], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+17], v[v_turned0+1], v[v_scores1+17], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+18], v[v_turned0+1], v[v_scores1+18], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+19], v[v_turned0+1], v[v_scores1+19], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 40
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 41
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 42
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 43
  v_cndmask_b32_e64 v[v_scores1+20], v[v_turned0+1], v[v_scores1+20], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+21], v[v_turned0+1], v[v_scores1+21], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+22], v[v_turned0+1], v[v_scores1+22], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+23], v[v_turned0+1], v[v_scores1+23], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 48
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 49
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 50
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 51
  v_cndmask_b32_e64 v[v_scores1+24], v[v_turned0+1], v[v_scores1+24], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+25], v[v_turned0+1], v[v_scores1+25], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+26], v[v_turned0+1], v[v_scores1+26], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+27], v[v_turned0+1], v[v_scores1+27], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 56
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 57
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 58
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 59
  v_cndmask_b32_e64 v[v_scores1+28], v[v_turned0+1], v[v_scores1+28], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores1+29], v[v_turned0+1], v[v_scores1+29], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores1+30], v[v_turned0+1], v[v_scores1+30], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores1+31], v[v_turned0+1], v[v_scores1+31], s[s_seen+6:s_seen+7]
attention_bf16.after.4:
  s_add_u32 s[s_key], s[s_key], 64
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment2:v_fragment2+1], v[v_scores0+8:v_scores0+9], v[v_sums:v_sums+15]
  v_max3_f32 v[v_peak], v[v_scores1], v[v_scores1+1], v[v_scores1+2]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment2+2:v_fragment2+3], v[v_scores0+10:v_scores0+11], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value+3] offset:24576
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+3], v[v_scores1+4]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+5], v[v_scores1+6]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment3:v_fragment3+1], v[v_scores0+8:v_scores0+9], v[v_sums+16:v_sums+31]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+7], v[v_scores1+8]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+9], v[v_scores1+10]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment3+2:v_fragment3+3], v[v_scores0+10:v_scores0+11], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value+1] offset:28672
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+11], v[v_scores1+12]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment4:v_fragment4+1], v[v_scores0+8:v_scores0+9], v[v_sums+32:v_sums+47]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+13], v[v_scores1+14]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+15], v[v_scores1+16]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment4+2:v_fragment4+3], v[v_scores0+10:v_scores0+11], v[v_sums+32:v_sums+47]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+17], v[v_scores1+18]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+19], v[v_scores1+20]
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment5:v_fragment5+1], v[v_scores0+8:v_scores0+9], v[v_sums+48:v_sums+63]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+21], v[v_scores1+22]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment5+2:v_fragment5+3], v[v_scores0+10:v_scores0+11], v[v_sums+48:v_sums+63]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+23], v[v_scores1+24]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+25], v[v_scores1+26]
  s_waitcnt lgkmcnt(3)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0:v_fragment0+1], v[v_scores0+12:v_scores0+13], v[v_sums:v_sums+15]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+27], v[v_scores1+28]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores1+29], v[v_scores1+30]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0+2:v_fragment0+3], v[v_scores0+14:v_scores0+15], v[v_sums:v_sums+15]
  v_max_f32 v[v_peak], v[v_peak], v[v_scores1+31]
  s_waitcnt lgkmcnt(2)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1:v_fragment1+1], v[v_scores0+12:v_scores0+13], v[v_sums+16:v_sums+31]
  s_waitcnt vmcnt(4)
  ds_write_b128 v[v_write_key], v[v_staged_keys:v_staged_keys+3] offset:0
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1+2:v_fragment1+3], v[v_scores0+14:v_scores0+15], v[v_sums+16:v_sums+31]
  ds_write_b128 v[v_write_key], v[v_staged_keys+4:v_staged_keys+7] offset:4096
  ds_write_b128 v[v_write_key], v[v_staged_keys+8:v_staged_keys+11] offset:8192
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2:v_fragment2+1], v[v_scores0+12:v_scores0+13], v[v_sums+32:v_sums+47]
  ds_write_b128 v[v_write_key], v[v_staged_keys+12:v_staged_keys+15] offset:12288
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2+2:v_fragment2+3], v[v_scores0+14:v_scores0+15], v[v_sums+32:v_sums+47]
  s_sub_i32 s[s_k_left], s[s_k_left], 64
  s_min_i32 s[s_k_rows+2], s[s_k_left], 64
  s_sub_i32 s[s_k_rows+2], s[s_k_rows+2], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x100
  s_cmp_gt_i32 s[s_k_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_step]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3:v_fragment3+1], v[v_scores0+12:v_scores0+13], v[v_sums+48:v_sums+63]
  buffer_load_dwordx4 v[v_staged_keys:v_staged_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_keys+4:v_staged_keys+7], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step1] offen
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3+2:v_fragment3+3], v[v_scores0+14:v_scores0+15], v[v_sums+48:v_sums+63]
  buffer_load_dwordx4 v[v_staged_keys+8:v_staged_keys+11], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step2] offen
  buffer_load_dwordx4 v[v_staged_keys+12:v_staged_keys+15], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier

  // The next tile's scores, beside shares; values to LDS
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key] offset:8192
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+1]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+1] offset:8192
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+2]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+2] offset:8192
  .set v_excess, 250
  v_sub_f32 v[v_excess], v[v_peak], v[v_top]
  v_mul_f32 v[v_excess], v[v_factor], v[v_excess]
  v_cmp_lt_f32 vcc, 0x41000000, v[v_excess]
  s_cbranch_vccz attention_bf16.after.5

  // Move the references up
  .set v_others, 250
  ds_bpermute_b32 v[v_others], v[v_other_half], v[v_peak]
  s_waitcnt lgkmcnt(0)
  v_max_f32 v[v_peak], v[v_peak], v[v_others]
  v_max_f32 v[v_peak], v[v_peak], v[v_top]
  v_sub_f32 v[v_others], v[v_top], v[v_peak]
  v_mul_f32 v[v_others], v[v_factor], v[v_others]
  v_exp_f32 v[v_others], v[v_others]
  v_mov_b32 v[v_top], v[v_peak]
  v_mul_f32 v[v_minus_top], -1.0, v[v_peak]
  v_pk_mul_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums:v_sums+1], v[v_sums:v_sums+1], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+2:v_sums+3], v[v_sums+2:v_sums+3], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+4:v_sums+5], v[v_sums+4:v_sums+5], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+6:v_sums+7], v[v_sums+6:v_sums+7], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+8:v_sums+9], v[v_sums+8:v_sums+9], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+10:v_sums+11], v[v_sums+10:v_sums+11], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+12:v_sums+13], v[v_sums+12:v_sums+13], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+14:v_sums+15], v[v_sums+14:v_sums+15], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+16:v_sums+17], v[v_sums+16:v_sums+17], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+18:v_sums+19], v[v_sums+18:v_sums+19], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+20:v_sums+21], v[v_sums+20:v_sums+21], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+22:v_sums+23], v[v_sums+22:v_sums+23], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+24:v_sums+25], v[v_sums+24:v_sums+25], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+26:v_sums+27], v[v_sums+26:v_sums+27], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+28:v_sums+29], v[v_sums+28:v_sums+29], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+30:v_sums+31], v[v_sums+30:v_sums+31], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+32:v_sums+33], v[v_sums+32:v_sums+33], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+34:v_sums+35], v[v_sums+34:v_sums+35], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+36:v_sums+37], v[v_sums+36:v_sums+37], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+38:v_sums+39], v[v_sums+38:v_sums+39], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+40:v_sums+41], v[v_sums+40:v_sums+41], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+42:v_sums+43], v[v_sums+42:v_sums+43], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+44:v_sums+45], v[v_sums+44:v_sums+45], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+46:v_sums+47], v[v_sums+46:v_sums+47], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+48:v_sums+49], v[v_sums+48:v_sums+49], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+50:v_sums+51], v[v_sums+50:v_sums+51], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+52:v_sums+53], v[v_sums+52:v_sums+53], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+54:v_sums+55], v[v_sums+54:v_sums+55], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+56:v_sums+57], v[v_sums+56:v_sums+57], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+58:v_sums+59], v[v_sums+58:v_sums+59], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+60:v_sums+61], v[v_sums+60:v_sums+61], v[v_others:v_others+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_sums+62:v_sums+63], v[v_sums+62:v_sums+63], v[v_others:v_others+1] op_sel_hi:[1,0]
attention_bf16.after.5:
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries:v_queries+1], 0
  v_pk_add_f32 v[v_scores1:v_scores1+1], v[v_scores1:v_scores1+1], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+2:v_scores1+3], v[v_scores1+2:v_scores1+3], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1:v_scores1+1], v[v_scores1:v_scores1+1], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+2:v_queries+3], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+3]
  v_pk_mul_f32 v[v_scores1+2:v_scores1+3], v[v_scores1+2:v_scores1+3], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores1], v[v_scores1]
  v_exp_f32 v[v_scores1+1], v[v_scores1+1]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries:v_queries+1], 0
  v_exp_f32 v[v_scores1+2], v[v_scores1+2]
  v_exp_f32 v[v_scores1+3], v[v_scores1+3]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1:v_scores1+1]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+2:v_queries+3], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+3] offset:8192
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+2:v_scores1+3]
  v_add_u32 v[v_scores1], s[s_rounding], v[v_scores1]
  v_add_u32 v[v_scores1+1], s[s_rounding], v[v_scores1+1]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+4:v_queries+5], v[v_scores0:v_scores0+15]
  v_perm_b32 v[v_scores1], v[v_scores1+1], v[v_scores1], s[s_high_halves]
  v_add_u32 v[v_scores1+2], s[s_rounding], v[v_scores1+2]
  v_add_u32 v[v_scores1+3], s[s_rounding], v[v_scores1+3]
  v_perm_b32 v[v_scores1+1], v[v_scores1+3], v[v_scores1+2], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+6:v_queries+7], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+4]
  v_pk_add_f32 v[v_scores1+4:v_scores1+5], v[v_scores1+4:v_scores1+5], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+6:v_scores1+7], v[v_scores1+6:v_scores1+7], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+4:v_scores1+5], v[v_scores1+4:v_scores1+5], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+4:v_queries+5], v[v_scores0+16:v_scores0+31]
  v_pk_mul_f32 v[v_scores1+6:v_scores1+7], v[v_scores1+6:v_scores1+7], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores1+4], v[v_scores1+4]
  v_exp_f32 v[v_scores1+5], v[v_scores1+5]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+6:v_queries+7], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+4] offset:8192
  v_exp_f32 v[v_scores1+6], v[v_scores1+6]
  v_exp_f32 v[v_scores1+7], v[v_scores1+7]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+4:v_scores1+5]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4:v_fragment4+1], v[v_queries+8:v_queries+9], v[v_scores0:v_scores0+15]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+6:v_scores1+7]
  v_add_u32 v[v_scores1+4], s[s_rounding], v[v_scores1+4]
  v_add_u32 v[v_scores1+5], s[s_rounding], v[v_scores1+5]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+10:v_queries+11], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_key+5]
  v_perm_b32 v[v_scores1+2], v[v_scores1+5], v[v_scores1+4], s[s_high_halves]
  v_add_u32 v[v_scores1+6], s[s_rounding], v[v_scores1+6]
  v_add_u32 v[v_scores1+7], s[s_rounding], v[v_scores1+7]
  v_perm_b32 v[v_scores1+3], v[v_scores1+7], v[v_scores1+6], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5:v_fragment5+1], v[v_queries+8:v_queries+9], v[v_scores0+16:v_scores0+31]
  v_pk_add_f32 v[v_scores1+8:v_scores1+9], v[v_scores1+8:v_scores1+9], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+10:v_scores1+11], v[v_scores1+10:v_scores1+11], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+8:v_scores1+9], v[v_scores1+8:v_scores1+9], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+10:v_queries+11], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_key+5] offset:8192
  v_pk_mul_f32 v[v_scores1+10:v_scores1+11], v[v_scores1+10:v_scores1+11], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores1+8], v[v_scores1+8]
  v_exp_f32 v[v_scores1+9], v[v_scores1+9]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries+12:v_queries+13], v[v_scores0:v_scores0+15]
  v_exp_f32 v[v_scores1+10], v[v_scores1+10]
  v_exp_f32 v[v_scores1+11], v[v_scores1+11]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+8:v_scores1+9]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+14:v_queries+15], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_key+6]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+10:v_scores1+11]
  v_add_u32 v[v_scores1+8], s[s_rounding], v[v_scores1+8]
  v_add_u32 v[v_scores1+9], s[s_rounding], v[v_scores1+9]
  v_perm_b32 v[v_scores1+4], v[v_scores1+9], v[v_scores1+8], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries+12:v_queries+13], v[v_scores0+16:v_scores0+31]
  v_add_u32 v[v_scores1+10], s[s_rounding], v[v_scores1+10]
  v_add_u32 v[v_scores1+11], s[s_rounding], v[v_scores1+11]
  v_perm_b32 v[v_scores1+5], v[v_scores1+11], v[v_scores1+10], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+14:v_queries+15], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_key+6] offset:8192
  v_pk_add_f32 v[v_scores1+12:v_scores1+13], v[v_scores1+12:v_scores1+13], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+14:v_scores1+15], v[v_scores1+14:v_scores1+15], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+12:v_scores1+13], v[v_scores1+12:v_scores1+13], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+16:v_queries+17], v[v_scores0:v_scores0+15]
  v_pk_mul_f32 v[v_scores1+14:v_scores1+15], v[v_scores1+14:v_scores1+15], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores1+12], v[v_scores1+12]
  v_exp_f32 v[v_scores1+13], v[v_scores1+13]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+18:v_queries+19], v[v_scores0:v_scores0+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_key+7]
  v_exp_f32 v[v_scores1+14], v[v_scores1+14]
  v_exp_f32 v[v_scores1+15], v[v_scores1+15]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+12:v_scores1+13]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+16:v_queries+17], v[v_scores0+16:v_scores0+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+14:v_scores1+15]
  v_add_u32 v[v_scores1+12], s[s_rounding], v[v_scores1+12]
  v_add_u32 v[v_scores1+13], s[s_rounding], v[v_scores1+13]
  v_perm_b32 v[v_scores1+6], v[v_scores1+13], v[v_scores1+12], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+18:v_queries+19], v[v_scores0+16:v_scores0+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_key+7] offset:8192
  v_add_u32 v[v_scores1+14], s[s_rounding], v[v_scores1+14]
  v_add_u32 v[v_scores1+15], s[s_rounding], v[v_scores1+15]
  v_perm_b32 v[v_scores1+7], v[v_scores1+15], v[v_scores1+14], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4:v_fragment4+1], v[v_queries+20:v_queries+21], v[v_scores0:v_scores0+15]
  s_waitcnt vmcnt(4)
  v_perm_b32 v[v_turned0], v[v_staged_values+4], v[v_staged_values], s[s_low_halves]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+12], v[v_staged_values+8], s[s_low_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment4+2:v_fragment4+3], v[v_queries+22:v_queries+23], v[v_scores0:v_scores0+15]
  v_xor_b32 v[v_turned_at], 0, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16384
  v_perm_b32 v[v_turned1], v[v_staged_values+4], v[v_staged_values], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5:v_fragment5+1], v[v_queries+20:v_queries+21], v[v_scores0+16:v_scores0+31]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+12], v[v_staged_values+8], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 16, v[v_write_value]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:16512
  v_perm_b32 v[v_turned0], v[v_staged_values+5], v[v_staged_values+1], s[s_low_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment5+2:v_fragment5+3], v[v_queries+22:v_queries+23], v[v_scores0+16:v_scores0+31]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+13], v[v_staged_values+9], s[s_low_halves]
  v_xor_b32 v[v_turned_at], 32, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16640
  s_waitcnt lgkmcnt(6)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0:v_fragment0+1], v[v_queries+24:v_queries+25], v[v_scores0:v_scores0+15]
  v_perm_b32 v[v_turned1], v[v_staged_values+5], v[v_staged_values+1], s[s_high_halves]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+13], v[v_staged_values+9], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 48, v[v_write_value]
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment0+2:v_fragment0+3], v[v_queries+26:v_queries+27], v[v_scores0:v_scores0+15]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:16768
  v_perm_b32 v[v_turned0], v[v_staged_values+6], v[v_staged_values+2], s[s_low_halves]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+14], v[v_staged_values+10], s[s_low_halves]
  s_waitcnt lgkmcnt(6)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1:v_fragment1+1], v[v_queries+24:v_queries+25], v[v_scores0+16:v_scores0+31]
  v_xor_b32 v[v_turned_at], 64, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:16896
  v_perm_b32 v[v_turned1], v[v_staged_values+6], v[v_staged_values+2], s[s_high_halves]
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment1+2:v_fragment1+3], v[v_queries+26:v_queries+27], v[v_scores0+16:v_scores0+31]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+14], v[v_staged_values+10], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 0x50, v[v_write_value]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:17024
  v_perm_b32 v[v_turned0], v[v_staged_values+7], v[v_staged_values+3], s[s_low_halves]
  s_waitcnt lgkmcnt(7)
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2:v_fragment2+1], v[v_queries+28:v_queries+29], v[v_scores0:v_scores0+15]
  v_perm_b32 v[v_turned0+1], v[v_staged_values+15], v[v_staged_values+11], s[s_low_halves]
  v_xor_b32 v[v_turned_at], 0x60, v[v_write_value]
  ds_write_b64 v[v_turned_at], v[v_turned0:v_turned0+1] offset:17152
  v_mfma_f32_32x32x8_bf16 v[v_scores0:v_scores0+15], v[v_fragment2+2:v_fragment2+3], v[v_queries+30:v_queries+31], v[v_scores0:v_scores0+15]
  v_perm_b32 v[v_turned1], v[v_staged_values+7], v[v_staged_values+3], s[s_high_halves]
  v_perm_b32 v[v_turned1+1], v[v_staged_values+15], v[v_staged_values+11], s[s_high_halves]
  v_xor_b32 v[v_turned_at+1], 0x70, v[v_write_value]
  s_waitcnt lgkmcnt(7)
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3:v_fragment3+1], v[v_queries+28:v_queries+29], v[v_scores0+16:v_scores0+31]
  ds_write_b64 v[v_turned_at+1], v[v_turned1:v_turned1+1] offset:17280
  s_sub_i32 s[s_v_left], s[s_v_left], 64
  s_min_i32 s[s_v_rows+2], s[s_v_left], 64
  s_sub_i32 s[s_v_rows+2], s[s_v_rows+2], 1
  s_mul_i32 s[s_v_rows+2], s[s_v_rows+2], s[s_v_token]
  s_add_u32 s[s_v_rows+2], s[s_v_rows+2], 0x100
  s_cmp_gt_i32 s[s_v_left], 0
  s_cselect_b32 s[s_v_rows+2], s[s_v_rows+2], 0
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_v_step]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], 0
  v_mfma_f32_32x32x8_bf16 v[v_scores0+16:v_scores0+31], v[v_fragment3+2:v_fragment3+3], v[v_queries+30:v_queries+31], v[v_scores0+16:v_scores0+31]
  buffer_load_dwordx4 v[v_staged_values:v_staged_values+3], v[v_value_at], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_values+4:v_staged_values+7], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step1] offen
  buffer_load_dwordx4 v[v_staged_values+8:v_staged_values+11], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step2] offen
  buffer_load_dwordx4 v[v_staged_values+12:v_staged_values+15], v[v_value_at], s[s_v_rows:s_v_rows+3], s[s_v_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier

  // Values, beside the other shares; keys to LDS
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value] offset:16384
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+2] offset:20480
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value] offset:24576
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value+2] offset:28672
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_value+1] offset:16384
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_value+3] offset:20480
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0:v_fragment0+1], v[v_scores1:v_scores1+1], v[v_sums:v_sums+15]
  v_pk_add_f32 v[v_scores1+16:v_scores1+17], v[v_scores1+16:v_scores1+17], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+18:v_scores1+19], v[v_scores1+18:v_scores1+19], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+16:v_scores1+17], v[v_scores1+16:v_scores1+17], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+18:v_scores1+19], v[v_scores1+18:v_scores1+19], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0+2:v_fragment0+3], v[v_scores1+2:v_scores1+3], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value+1] offset:24576
  v_exp_f32 v[v_scores1+16], v[v_scores1+16]
  v_exp_f32 v[v_scores1+17], v[v_scores1+17]
  v_exp_f32 v[v_scores1+18], v[v_scores1+18]
  v_exp_f32 v[v_scores1+19], v[v_scores1+19]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1:v_fragment1+1], v[v_scores1:v_scores1+1], v[v_sums+16:v_sums+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+16:v_scores1+17]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+18:v_scores1+19]
  v_add_u32 v[v_scores1+16], s[s_rounding], v[v_scores1+16]
  v_add_u32 v[v_scores1+17], s[s_rounding], v[v_scores1+17]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1+2:v_fragment1+3], v[v_scores1+2:v_scores1+3], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+3] offset:28672
  v_perm_b32 v[v_scores1+8], v[v_scores1+17], v[v_scores1+16], s[s_high_halves]
  v_add_u32 v[v_scores1+18], s[s_rounding], v[v_scores1+18]
  v_add_u32 v[v_scores1+19], s[s_rounding], v[v_scores1+19]
  v_perm_b32 v[v_scores1+9], v[v_scores1+19], v[v_scores1+18], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2:v_fragment2+1], v[v_scores1:v_scores1+1], v[v_sums+32:v_sums+47]
  v_pk_add_f32 v[v_scores1+20:v_scores1+21], v[v_scores1+20:v_scores1+21], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+22:v_scores1+23], v[v_scores1+22:v_scores1+23], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+20:v_scores1+21], v[v_scores1+20:v_scores1+21], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+22:v_scores1+23], v[v_scores1+22:v_scores1+23], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2+2:v_fragment2+3], v[v_scores1+2:v_scores1+3], v[v_sums+32:v_sums+47]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value+2] offset:16384
  v_exp_f32 v[v_scores1+20], v[v_scores1+20]
  v_exp_f32 v[v_scores1+21], v[v_scores1+21]
  v_exp_f32 v[v_scores1+22], v[v_scores1+22]
  v_exp_f32 v[v_scores1+23], v[v_scores1+23]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3:v_fragment3+1], v[v_scores1:v_scores1+1], v[v_sums+48:v_sums+63]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+20:v_scores1+21]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+22:v_scores1+23]
  v_add_u32 v[v_scores1+20], s[s_rounding], v[v_scores1+20]
  v_add_u32 v[v_scores1+21], s[s_rounding], v[v_scores1+21]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3+2:v_fragment3+3], v[v_scores1+2:v_scores1+3], v[v_sums+48:v_sums+63]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value] offset:20480
  v_perm_b32 v[v_scores1+10], v[v_scores1+21], v[v_scores1+20], s[s_high_halves]
  v_add_u32 v[v_scores1+22], s[s_rounding], v[v_scores1+22]
  v_add_u32 v[v_scores1+23], s[s_rounding], v[v_scores1+23]
  v_perm_b32 v[v_scores1+11], v[v_scores1+23], v[v_scores1+22], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment4:v_fragment4+1], v[v_scores1+4:v_scores1+5], v[v_sums:v_sums+15]
  v_pk_add_f32 v[v_scores1+24:v_scores1+25], v[v_scores1+24:v_scores1+25], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+26:v_scores1+27], v[v_scores1+26:v_scores1+27], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+24:v_scores1+25], v[v_scores1+24:v_scores1+25], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+26:v_scores1+27], v[v_scores1+26:v_scores1+27], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment4+2:v_fragment4+3], v[v_scores1+6:v_scores1+7], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment4:v_fragment4+3], v[v_read_value+2] offset:24576
  v_exp_f32 v[v_scores1+24], v[v_scores1+24]
  v_exp_f32 v[v_scores1+25], v[v_scores1+25]
  v_exp_f32 v[v_scores1+26], v[v_scores1+26]
  v_exp_f32 v[v_scores1+27], v[v_scores1+27]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment5:v_fragment5+1], v[v_scores1+4:v_scores1+5], v[v_sums+16:v_sums+31]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+24:v_scores1+25]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+26:v_scores1+27]
  v_add_u32 v[v_scores1+24], s[s_rounding], v[v_scores1+24]
  v_add_u32 v[v_scores1+25], s[s_rounding], v[v_scores1+25]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment5+2:v_fragment5+3], v[v_scores1+6:v_scores1+7], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment5:v_fragment5+3], v[v_read_value] offset:28672
  v_perm_b32 v[v_scores1+12], v[v_scores1+25], v[v_scores1+24], s[s_high_halves]
  v_add_u32 v[v_scores1+26], s[s_rounding], v[v_scores1+26]
  v_add_u32 v[v_scores1+27], s[s_rounding], v[v_scores1+27]
  v_perm_b32 v[v_scores1+13], v[v_scores1+27], v[v_scores1+26], s[s_high_halves]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment0:v_fragment0+1], v[v_scores1+4:v_scores1+5], v[v_sums+32:v_sums+47]
  v_pk_add_f32 v[v_scores1+28:v_scores1+29], v[v_scores1+28:v_scores1+29], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores1+30:v_scores1+31], v[v_scores1+30:v_scores1+31], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+28:v_scores1+29], v[v_scores1+28:v_scores1+29], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores1+30:v_scores1+31], v[v_scores1+30:v_scores1+31], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment0+2:v_fragment0+3], v[v_scores1+6:v_scores1+7], v[v_sums+32:v_sums+47]
  ds_read_b128 v[v_fragment0:v_fragment0+3], v[v_read_value+3] offset:16384
  v_exp_f32 v[v_scores1+28], v[v_scores1+28]
  v_exp_f32 v[v_scores1+29], v[v_scores1+29]
  v_exp_f32 v[v_scores1+30], v[v_scores1+30]
  v_exp_f32 v[v_scores1+31], v[v_scores1+31]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment1:v_fragment1+1], v[v_scores1+4:v_scores1+5], v[v_sums+48:v_sums+63]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+28:v_scores1+29]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores1+30:v_scores1+31]
  v_add_u32 v[v_scores1+28], s[s_rounding], v[v_scores1+28]
  v_add_u32 v[v_scores1+29], s[s_rounding], v[v_scores1+29]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment1+2:v_fragment1+3], v[v_scores1+6:v_scores1+7], v[v_sums+48:v_sums+63]
  ds_read_b128 v[v_fragment1:v_fragment1+3], v[v_read_value+1] offset:20480
  v_perm_b32 v[v_scores1+14], v[v_scores1+29], v[v_scores1+28], s[s_high_halves]
  v_add_u32 v[v_scores1+30], s[s_rounding], v[v_scores1+30]
  v_add_u32 v[v_scores1+31], s[s_rounding], v[v_scores1+31]
  v_perm_b32 v[v_scores1+15], v[v_scores1+31], v[v_scores1+30], s[s_high_halves]
  .set s_last_of_tile, 65
  s_add_u32 s[s_last_of_tile], s[s_key], 63
  s_cmp_le_i32 s[s_last_of_tile], s[s_wave_sees]
  s_cbranch_scc1 attention_bf16.after.6

  // Mask
  v_subrev_u32 v[v_turned0], s[s_key], v[v_sees]
  v_mov_b32 v[v_turned0+1], 0xff800000
  .set s_seen, 68
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 0
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 1
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 2
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 3
  v_cndmask_b32_e64 v[v_scores0], v[v_turned0+1], v[v_scores0], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+1], v[v_turned0+1], v[v_scores0+1], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+2], v[v_turned0+1], v[v_scores0+2], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+3], v[v_turned0+1], v[v_scores0+3], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 8
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 9
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 10
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 11
  v_cndmask_b32_e64 v[v_scores0+4], v[v_turned0+1], v[v_scores0+4], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+5], v[v_turned0+1], v[v_scores0+5], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+6], v[v_turned0+1], v[v_scores0+6], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+7], v[v_turned0+1], v[v_scores0+7], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 16
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 17
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 18
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 19
  v_cndmask_b32_e64 v[v_scores0+8], v[v_turned0+1], v[v_scores0+8], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+9], v[v_turned0+1], v[v_scores0+9], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+10], v[v_turned0+1], v[v_scores0+10], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+11], v[v_turned0+1], v[v_scores0+11], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 24
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 25
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 26
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 27
  v_cndmask_b32_e64 v[v_scores0+12], v[v_turned0+1], v[v_scores0+12], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+13], v[v_turned0+1], v[v_scores0+13], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+14], v[v_turned0+1], v[v_scores0+14], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+15], v[v_turned0+1], v[v_scores0+15], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 32
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 33
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 34
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 35
  v_cndmask_b32_e64 v[v_scores0+16], v[v_turned0+1], v[v_scores0+16], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+17], v[v_turned0+1], v[v_scores0+17], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+18], v[v_turned0+1], v[v_scores0+18], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+19], v[v_turned0+1], v[v_scores0+19], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 40
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 41
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 42
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 43
  v_cndmask_b32_e64 v[v_scores0+20], v[v_turned0+1], v[v_scores0+20], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+21], v[v_turned0+1], v[v_scores0+21], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+22], v[v_turned0+1], v[v_scores0+22], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+23], v[v_turned0+1], v[v_scores0+23], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 48
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 49
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 50
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 51
  v_cndmask_b32_e64 v[v_scores0+24], v[v_turned0+1], v[v_scores0+24], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+25], v[v_turned0+1], v[v_scores0+25], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+26], v[v_turned0+1], v[v_scores0+26], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+27], v[v_turned0+1], v[v_scores0+27], s[s_seen+6:s_seen+7]
  v_cmp_ge_i32 s[s_seen:s_seen+1], v[v_turned0], 56
  v_cmp_ge_i32 s[s_seen+2:s_seen+3], v[v_turned0], 57
  v_cmp_ge_i32 s[s_seen+4:s_seen+5], v[v_turned0], 58
  v_cmp_ge_i32 s[s_seen+6:s_seen+7], v[v_turned0], 59
  v_cndmask_b32_e64 v[v_scores0+28], v[v_turned0+1], v[v_scores0+28], s[s_seen:s_seen+1]
  v_cndmask_b32_e64 v[v_scores0+29], v[v_turned0+1], v[v_scores0+29], s[s_seen+2:s_seen+3]
  v_cndmask_b32_e64 v[v_scores0+30], v[v_turned0+1], v[v_scores0+30], s[s_seen+4:s_seen+5]
  v_cndmask_b32_e64 v[v_scores0+31], v[v_turned0+1], v[v_scores0+31], s[s_seen+6:s_seen+7]
attention_bf16.after.6:
  s_add_u32 s[s_key], s[s_key], 64
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment2:v_fragment2+1], v[v_scores1+8:v_scores1+9], v[v_sums:v_sums+15]
  v_max3_f32 v[v_peak], v[v_scores0], v[v_scores0+1], v[v_scores0+2]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment2+2:v_fragment2+3], v[v_scores1+10:v_scores1+11], v[v_sums:v_sums+15]
  ds_read_b128 v[v_fragment2:v_fragment2+3], v[v_read_value+3] offset:24576
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+3], v[v_scores0+4]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+5], v[v_scores0+6]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment3:v_fragment3+1], v[v_scores1+8:v_scores1+9], v[v_sums+16:v_sums+31]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+7], v[v_scores0+8]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+9], v[v_scores0+10]
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment3+2:v_fragment3+3], v[v_scores1+10:v_scores1+11], v[v_sums+16:v_sums+31]
  ds_read_b128 v[v_fragment3:v_fragment3+3], v[v_read_value+1] offset:28672
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+11], v[v_scores0+12]
  s_waitcnt lgkmcnt(5)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment4:v_fragment4+1], v[v_scores1+8:v_scores1+9], v[v_sums+32:v_sums+47]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+13], v[v_scores0+14]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+15], v[v_scores0+16]
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment4+2:v_fragment4+3], v[v_scores1+10:v_scores1+11], v[v_sums+32:v_sums+47]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+17], v[v_scores0+18]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+19], v[v_scores0+20]
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment5:v_fragment5+1], v[v_scores1+8:v_scores1+9], v[v_sums+48:v_sums+63]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+21], v[v_scores0+22]
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment5+2:v_fragment5+3], v[v_scores1+10:v_scores1+11], v[v_sums+48:v_sums+63]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+23], v[v_scores0+24]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+25], v[v_scores0+26]
  s_waitcnt lgkmcnt(3)
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0:v_fragment0+1], v[v_scores1+12:v_scores1+13], v[v_sums:v_sums+15]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+27], v[v_scores0+28]
  v_max3_f32 v[v_peak], v[v_peak], v[v_scores0+29], v[v_scores0+30]
  v_mfma_f32_32x32x8_bf16 v[v_sums:v_sums+15], v[v_fragment0+2:v_fragment0+3], v[v_scores1+14:v_scores1+15], v[v_sums:v_sums+15]
  v_max_f32 v[v_peak], v[v_peak], v[v_scores0+31]
  s_waitcnt lgkmcnt(2)
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1:v_fragment1+1], v[v_scores1+12:v_scores1+13], v[v_sums+16:v_sums+31]
  s_waitcnt vmcnt(4)
  ds_write_b128 v[v_write_key], v[v_staged_keys:v_staged_keys+3] offset:0
  v_mfma_f32_32x32x8_bf16 v[v_sums+16:v_sums+31], v[v_fragment1+2:v_fragment1+3], v[v_scores1+14:v_scores1+15], v[v_sums+16:v_sums+31]
  ds_write_b128 v[v_write_key], v[v_staged_keys+4:v_staged_keys+7] offset:4096
  ds_write_b128 v[v_write_key], v[v_staged_keys+8:v_staged_keys+11] offset:8192
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2:v_fragment2+1], v[v_scores1+12:v_scores1+13], v[v_sums+32:v_sums+47]
  ds_write_b128 v[v_write_key], v[v_staged_keys+12:v_staged_keys+15] offset:12288
  v_mfma_f32_32x32x8_bf16 v[v_sums+32:v_sums+47], v[v_fragment2+2:v_fragment2+3], v[v_scores1+14:v_scores1+15], v[v_sums+32:v_sums+47]
  s_sub_i32 s[s_k_left], s[s_k_left], 64
  s_min_i32 s[s_k_rows+2], s[s_k_left], 64
  s_sub_i32 s[s_k_rows+2], s[s_k_rows+2], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x100
  s_cmp_gt_i32 s[s_k_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_step]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  s_waitcnt lgkmcnt(4)
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3:v_fragment3+1], v[v_scores1+12:v_scores1+13], v[v_sums+48:v_sums+63]
  buffer_load_dwordx4 v[v_staged_keys:v_staged_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_staged_keys+4:v_staged_keys+7], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step1] offen
  v_mfma_f32_32x32x8_bf16 v[v_sums+48:v_sums+63], v[v_fragment3+2:v_fragment3+3], v[v_scores1+14:v_scores1+15], v[v_sums+48:v_sums+63]
  buffer_load_dwordx4 v[v_staged_keys+8:v_staged_keys+11], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step2] offen
  buffer_load_dwordx4 v[v_staged_keys+12:v_staged_keys+15], v[v_key_at], s[s_k_rows:s_k_rows+3], s[s_k_step3] offen
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_sub_u32 s[s_pairs_of_tiles], s[s_pairs_of_tiles], 1
  s_cmp_lg_u32 s[s_pairs_of_tiles], 0
  s_cbranch_scc1 attention_bf16.tiles.2
  s_waitcnt vmcnt(0) lgkmcnt(0)

  // The result
  .set v_lane, 6
  .set v_upper, 7
  .set v_row, 8
  v_and_b32 v[v_lane], 31, v[v_thread]
  v_bfe_u32 v[v_upper], v[v_thread], 5, 1
  v_add_u32 v[v_row], s[s_wave_first], v[v_lane]
  v_add_f32 v[v_total], v[v_total], v[v_total+1]
  .set v_others, 9
  ds_bpermute_b32 v[v_others], v[v_other_half], v[v_total]
  s_waitcnt lgkmcnt(0)
  v_add_f32 v[v_total], v[v_total], v[v_others]
  .set v_inverse, 9
  v_rcp_f32 v[v_inverse], v[v_total]
  .set v_nothing, 10
  v_mov_b32 v[v_nothing], 0
  v_cmp_eq_f32 vcc, 0, v[v_total]
  s_nop 1
  v_cndmask_b32 v[v_inverse], v[v_inverse], v[v_nothing], vcc
  .set s_out_token, 65
  .set s_out_place, 66
  .set s_out_step, 68
  s_mul_i32 s[s_out_token], s[s_group+2], s[s_seq_q]
  s_mul_i32 s[s_out_token], s[s_out_token], s[s_heads]
  s_add_u32 s[s_out_token], s[s_out_token], s[s_group+1]
  s_mov_b32 s[s_out_step], 0x100
  s_mul_i32 s[s_out_place], s[s_out_token], s[s_out_step]
  s_mul_hi_u32 s[s_out_place+1], s[s_out_token], s[s_out_step]
  s_add_u32 s[s_out_place], s[s_out_place], s[s_out]
  s_addc_u32 s[s_out_place+1], s[s_out_place+1], s[s_out+1]
  s_lshl_b32 s[s_out_step], s[s_heads], 8
  .set s_out_rows, 72
  s_mul_i32 s[s_out_rows], s[s_first], s[s_out_step]
  s_mul_hi_u32 s[s_out_rows+1], s[s_first], s[s_out_step]
  s_add_u32 s[s_out_rows], s[s_out_rows], s[s_out_place]
  s_addc_u32 s[s_out_rows+1], s[s_out_rows+1], s[s_out_place+1]
  s_sub_u32 s[s_out_rows+2], s[s_seq_q], s[s_first]
  s_min_u32 s[s_out_rows+2], s[s_out_rows+2], 0x80
  s_sub_u32 s[s_out_rows+2], s[s_out_rows+2], 1
  s_mul_i32 s[s_out_rows+2], s[s_out_rows+2], s[s_out_step]
  s_add_u32 s[s_out_rows+2], s[s_out_rows+2], 0x100
  s_and_b32 s[s_out_rows+1], s[s_out_rows+1], 0xffff
  s_mov_b32 s[s_out_rows+3], 0x27000
  .set v_out_at, 10
  .set v_packed, 12
  v_mul_lo_u32 v[v_out_at], v[v_row], s[s_out_step]
  v_lshl_add_u32 v[v_out_at], v[v_upper], 3, v[v_out_at]
  .set s_half_unit, 65
  s_mov_b32 s[s_half_unit], 0x7fff
  .set v_quiet_nan, 11
  v_mov_b32 v[v_quiet_nan], 0x7fff0000
  v_mul_f32 v[v_sums], v[v_inverse], v[v_sums]
  v_mul_f32 v[v_sums+1], v[v_inverse], v[v_sums+1]
  v_mul_f32 v[v_sums+2], v[v_inverse], v[v_sums+2]
  v_mul_f32 v[v_sums+3], v[v_inverse], v[v_sums+3]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums], v[v_sums]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+1], v[v_sums+1]
  v_bfe_u32 v[v_odd], v[v_sums], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+1], 16, 1
  v_add3_u32 v[v_odd], v[v_sums], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+1], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+1], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+1], v[v_sums], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+2], v[v_sums+2]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+3], v[v_sums+3]
  v_bfe_u32 v[v_odd], v[v_sums+2], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+3], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+2], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+3], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+2], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+3], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+3], v[v_sums+2], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen
  v_mul_f32 v[v_sums+4], v[v_inverse], v[v_sums+4]
  v_mul_f32 v[v_sums+5], v[v_inverse], v[v_sums+5]
  v_mul_f32 v[v_sums+6], v[v_inverse], v[v_sums+6]
  v_mul_f32 v[v_sums+7], v[v_inverse], v[v_sums+7]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+4], v[v_sums+4]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+5], v[v_sums+5]
  v_bfe_u32 v[v_odd], v[v_sums+4], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+5], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+4], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+5], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+4], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+5], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+5], v[v_sums+4], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+6], v[v_sums+6]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+7], v[v_sums+7]
  v_bfe_u32 v[v_odd], v[v_sums+6], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+7], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+6], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+7], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+6], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+7], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+7], v[v_sums+6], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:16
  v_mul_f32 v[v_sums+8], v[v_inverse], v[v_sums+8]
  v_mul_f32 v[v_sums+9], v[v_inverse], v[v_sums+9]
  v_mul_f32 v[v_sums+10], v[v_inverse], v[v_sums+10]
  v_mul_f32 v[v_sums+11], v[v_inverse], v[v_sums+11]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+8], v[v_sums+8]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+9], v[v_sums+9]
  v_bfe_u32 v[v_odd], v[v_sums+8], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+9], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+8], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+9], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+8], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+9], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+9], v[v_sums+8], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+10], v[v_sums+10]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+11], v[v_sums+11]
  v_bfe_u32 v[v_odd], v[v_sums+10], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+11], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+10], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+11], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+10], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+11], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+11], v[v_sums+10], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:32
  v_mul_f32 v[v_sums+12], v[v_inverse], v[v_sums+12]
  v_mul_f32 v[v_sums+13], v[v_inverse], v[v_sums+13]
  v_mul_f32 v[v_sums+14], v[v_inverse], v[v_sums+14]
  v_mul_f32 v[v_sums+15], v[v_inverse], v[v_sums+15]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+12], v[v_sums+12]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+13], v[v_sums+13]
  v_bfe_u32 v[v_odd], v[v_sums+12], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+13], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+12], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+13], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+12], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+13], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+13], v[v_sums+12], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+14], v[v_sums+14]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+15], v[v_sums+15]
  v_bfe_u32 v[v_odd], v[v_sums+14], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+15], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+14], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+15], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+14], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+15], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+15], v[v_sums+14], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:48
  v_mul_f32 v[v_sums+16], v[v_inverse], v[v_sums+16]
  v_mul_f32 v[v_sums+17], v[v_inverse], v[v_sums+17]
  v_mul_f32 v[v_sums+18], v[v_inverse], v[v_sums+18]
  v_mul_f32 v[v_sums+19], v[v_inverse], v[v_sums+19]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+16], v[v_sums+16]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+17], v[v_sums+17]
  v_bfe_u32 v[v_odd], v[v_sums+16], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+17], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+16], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+17], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+16], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+17], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+17], v[v_sums+16], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+18], v[v_sums+18]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+19], v[v_sums+19]
  v_bfe_u32 v[v_odd], v[v_sums+18], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+19], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+18], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+19], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+18], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+19], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+19], v[v_sums+18], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:64
  v_mul_f32 v[v_sums+20], v[v_inverse], v[v_sums+20]
  v_mul_f32 v[v_sums+21], v[v_inverse], v[v_sums+21]
  v_mul_f32 v[v_sums+22], v[v_inverse], v[v_sums+22]
  v_mul_f32 v[v_sums+23], v[v_inverse], v[v_sums+23]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+20], v[v_sums+20]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+21], v[v_sums+21]
  v_bfe_u32 v[v_odd], v[v_sums+20], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+21], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+20], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+21], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+20], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+21], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+21], v[v_sums+20], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+22], v[v_sums+22]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+23], v[v_sums+23]
  v_bfe_u32 v[v_odd], v[v_sums+22], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+23], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+22], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+23], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+22], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+23], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+23], v[v_sums+22], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:80
  v_mul_f32 v[v_sums+24], v[v_inverse], v[v_sums+24]
  v_mul_f32 v[v_sums+25], v[v_inverse], v[v_sums+25]
  v_mul_f32 v[v_sums+26], v[v_inverse], v[v_sums+26]
  v_mul_f32 v[v_sums+27], v[v_inverse], v[v_sums+27]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+24], v[v_sums+24]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+25], v[v_sums+25]
  v_bfe_u32 v[v_odd], v[v_sums+24], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+25], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+24], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+25], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+24], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+25], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+25], v[v_sums+24], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+26], v[v_sums+26]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+27], v[v_sums+27]
  v_bfe_u32 v[v_odd], v[v_sums+26], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+27], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+26], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+27], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+26], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+27], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+27], v[v_sums+26], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:96
  v_mul_f32 v[v_sums+28], v[v_inverse], v[v_sums+28]
  v_mul_f32 v[v_sums+29], v[v_inverse], v[v_sums+29]
  v_mul_f32 v[v_sums+30], v[v_inverse], v[v_sums+30]
  v_mul_f32 v[v_sums+31], v[v_inverse], v[v_sums+31]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+28], v[v_sums+28]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+29], v[v_sums+29]
  v_bfe_u32 v[v_odd], v[v_sums+28], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+29], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+28], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+29], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+28], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+29], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+29], v[v_sums+28], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+30], v[v_sums+30]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+31], v[v_sums+31]
  v_bfe_u32 v[v_odd], v[v_sums+30], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+31], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+30], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+31], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+30], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+31], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+31], v[v_sums+30], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:112
  v_mul_f32 v[v_sums+32], v[v_inverse], v[v_sums+32]
  v_mul_f32 v[v_sums+33], v[v_inverse], v[v_sums+33]
  v_mul_f32 v[v_sums+34], v[v_inverse], v[v_sums+34]
  v_mul_f32 v[v_sums+35], v[v_inverse], v[v_sums+35]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+32], v[v_sums+32]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+33], v[v_sums+33]
  v_bfe_u32 v[v_odd], v[v_sums+32], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+33], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+32], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+33], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+32], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+33], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+33], v[v_sums+32], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+34], v[v_sums+34]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+35], v[v_sums+35]
  v_bfe_u32 v[v_odd], v[v_sums+34], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+35], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+34], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+35], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+34], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+35], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+35], v[v_sums+34], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:128
  v_mul_f32 v[v_sums+36], v[v_inverse], v[v_sums+36]
  v_mul_f32 v[v_sums+37], v[v_inverse], v[v_sums+37]
  v_mul_f32 v[v_sums+38], v[v_inverse], v[v_sums+38]
  v_mul_f32 v[v_sums+39], v[v_inverse], v[v_sums+39]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+36], v[v_sums+36]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+37], v[v_sums+37]
  v_bfe_u32 v[v_odd], v[v_sums+36], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+37], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+36], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+37], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+36], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+37], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+37], v[v_sums+36], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+38], v[v_sums+38]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+39], v[v_sums+39]
  v_bfe_u32 v[v_odd], v[v_sums+38], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+39], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+38], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+39], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+38], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+39], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+39], v[v_sums+38], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:144
  v_mul_f32 v[v_sums+40], v[v_inverse], v[v_sums+40]
  v_mul_f32 v[v_sums+41], v[v_inverse], v[v_sums+41]
  v_mul_f32 v[v_sums+42], v[v_inverse], v[v_sums+42]
  v_mul_f32 v[v_sums+43], v[v_inverse], v[v_sums+43]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+40], v[v_sums+40]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+41], v[v_sums+41]
  v_bfe_u32 v[v_odd], v[v_sums+40], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+41], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+40], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+41], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+40], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+41], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+41], v[v_sums+40], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+42], v[v_sums+42]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+43], v[v_sums+43]
  v_bfe_u32 v[v_odd], v[v_sums+42], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+43], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+42], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+43], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+42], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+43], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+43], v[v_sums+42], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:160
  v_mul_f32 v[v_sums+44], v[v_inverse], v[v_sums+44]
  v_mul_f32 v[v_sums+45], v[v_inverse], v[v_sums+45]
  v_mul_f32 v[v_sums+46], v[v_inverse], v[v_sums+46]
  v_mul_f32 v[v_sums+47], v[v_inverse], v[v_sums+47]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+44], v[v_sums+44]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+45], v[v_sums+45]
  v_bfe_u32 v[v_odd], v[v_sums+44], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+45], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+44], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+45], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+44], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+45], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+45], v[v_sums+44], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+46], v[v_sums+46]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+47], v[v_sums+47]
  v_bfe_u32 v[v_odd], v[v_sums+46], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+47], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+46], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+47], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+46], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+47], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+47], v[v_sums+46], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:176
  v_mul_f32 v[v_sums+48], v[v_inverse], v[v_sums+48]
  v_mul_f32 v[v_sums+49], v[v_inverse], v[v_sums+49]
  v_mul_f32 v[v_sums+50], v[v_inverse], v[v_sums+50]
  v_mul_f32 v[v_sums+51], v[v_inverse], v[v_sums+51]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+48], v[v_sums+48]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+49], v[v_sums+49]
  v_bfe_u32 v[v_odd], v[v_sums+48], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+49], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+48], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+49], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+48], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+49], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+49], v[v_sums+48], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+50], v[v_sums+50]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+51], v[v_sums+51]
  v_bfe_u32 v[v_odd], v[v_sums+50], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+51], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+50], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+51], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+50], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+51], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+51], v[v_sums+50], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:192
  v_mul_f32 v[v_sums+52], v[v_inverse], v[v_sums+52]
  v_mul_f32 v[v_sums+53], v[v_inverse], v[v_sums+53]
  v_mul_f32 v[v_sums+54], v[v_inverse], v[v_sums+54]
  v_mul_f32 v[v_sums+55], v[v_inverse], v[v_sums+55]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+52], v[v_sums+52]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+53], v[v_sums+53]
  v_bfe_u32 v[v_odd], v[v_sums+52], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+53], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+52], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+53], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+52], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+53], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+53], v[v_sums+52], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+54], v[v_sums+54]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+55], v[v_sums+55]
  v_bfe_u32 v[v_odd], v[v_sums+54], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+55], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+54], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+55], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+54], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+55], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+55], v[v_sums+54], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:208
  v_mul_f32 v[v_sums+56], v[v_inverse], v[v_sums+56]
  v_mul_f32 v[v_sums+57], v[v_inverse], v[v_sums+57]
  v_mul_f32 v[v_sums+58], v[v_inverse], v[v_sums+58]
  v_mul_f32 v[v_sums+59], v[v_inverse], v[v_sums+59]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+56], v[v_sums+56]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+57], v[v_sums+57]
  v_bfe_u32 v[v_odd], v[v_sums+56], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+57], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+56], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+57], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+56], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+57], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+57], v[v_sums+56], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+58], v[v_sums+58]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+59], v[v_sums+59]
  v_bfe_u32 v[v_odd], v[v_sums+58], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+59], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+58], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+59], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+58], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+59], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+59], v[v_sums+58], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:224
  v_mul_f32 v[v_sums+60], v[v_inverse], v[v_sums+60]
  v_mul_f32 v[v_sums+61], v[v_inverse], v[v_sums+61]
  v_mul_f32 v[v_sums+62], v[v_inverse], v[v_sums+62]
  v_mul_f32 v[v_sums+63], v[v_inverse], v[v_sums+63]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+60], v[v_sums+60]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+61], v[v_sums+61]
  v_bfe_u32 v[v_odd], v[v_sums+60], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+61], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+60], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+61], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+60], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+61], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed], v[v_sums+61], v[v_sums+60], s[s_high_halves]
  .set v_odd, 14
  .set s_is_nan, 66
  v_cmp_u_f32 vcc, v[v_sums+62], v[v_sums+62]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_sums+63], v[v_sums+63]
  v_bfe_u32 v[v_odd], v[v_sums+62], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_sums+63], 16, 1
  v_add3_u32 v[v_odd], v[v_sums+62], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_sums+63], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_sums+62], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_sums+63], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_packed+1], v[v_sums+63], v[v_sums+62], s[s_high_halves]
  buffer_store_dwordx2 v[v_packed:v_packed+1], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen offset:240

  // The log-sum-exp
  .set s_lse_rows, 76
  .set v_logs, 10
  .set v_lse_at, 12
  v_log_f32 v[v_logs], v[v_total]
  s_nop 0
  v_fma_f32 v[v_logs], v[v_top], v[v_factor], v[v_logs]
  v_mul_f32 v[v_logs], 0x3f317218, v[v_logs]
  .set s_lse_row, 66
  .set s_lse_step, 67
  s_mul_i32 s[s_lse_row], s[s_group+2], s[s_heads]
  s_add_u32 s[s_lse_row], s[s_lse_row], s[s_group+1]
  s_lshl_b32 s[s_lse_step], s[s_seq_q], 2
  s_mul_i32 s[s_lse_rows], s[s_lse_row], s[s_lse_step]
  s_mul_hi_u32 s[s_lse_rows+1], s[s_lse_row], s[s_lse_step]
  s_add_u32 s[s_lse_rows], s[s_lse_rows], s[s_lse]
  s_addc_u32 s[s_lse_rows+1], s[s_lse_rows+1], s[s_lse+1]
  s_lshl_b32 s[s_lse_step], s[s_first], 2
  s_add_u32 s[s_lse_rows], s[s_lse_rows], s[s_lse_step]
  s_addc_u32 s[s_lse_rows+1], s[s_lse_rows+1], 0
  s_sub_u32 s[s_lse_rows+2], s[s_seq_q], s[s_first]
  s_lshl_b32 s[s_lse_rows+2], s[s_lse_rows+2], 2
  s_cmp_eq_u64 s[s_lse:s_lse+1], 0
  s_cselect_b32 s[s_lse_rows+2], 0, s[s_lse_rows+2]
  s_and_b32 s[s_lse_rows+1], s[s_lse_rows+1], 0xffff
  s_mov_b32 s[s_lse_rows+3], 0x27000
  v_lshlrev_b32 v[v_lse_at], 2, v[v_row]
  s_mov_b32 exec_hi, 0
  buffer_store_dword v[v_logs], v[v_lse_at], s[s_lse_rows:s_lse_rows+3], 0 offen
  s_endpgm
.attention_bf16_end:
.size attention_bf16, .attention_bf16_end - attention_bf16

.rodata
.p2align 6
.amdhsa_kernel attention_bf16
  .amdhsa_group_segment_fixed_size 32768
  .amdhsa_kernarg_size 128
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_sgpr_workgroup_id_z 1
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 252
  .amdhsa_accum_offset 252
  .amdhsa_next_free_sgpr 80
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: attention_bf16
    .symbol: attention_bf16.kd
    .kernarg_segment_size: 128
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 32768
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 86
    .vgpr_count: 252
    .agpr_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: q, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: k, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: v, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: out, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: lse, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: q_batch, .offset: 40, .size: 8, .value_kind: by_value}
      - {.name: k_batch, .offset: 48, .size: 8, .value_kind: by_value}
      - {.name: v_batch, .offset: 56, .size: 8, .value_kind: by_value}
      - {.name: q_token, .offset: 64, .size: 4, .value_kind: by_value}
      - {.name: q_head, .offset: 68, .size: 4, .value_kind: by_value}
      - {.name: k_token, .offset: 72, .size: 4, .value_kind: by_value}
      - {.name: k_head, .offset: 76, .size: 4, .value_kind: by_value}
      - {.name: v_token, .offset: 80, .size: 4, .value_kind: by_value}
      - {.name: v_head, .offset: 84, .size: 4, .value_kind: by_value}
      - {.name: seq_q, .offset: 88, .size: 4, .value_kind: by_value}
      - {.name: seq_k, .offset: 92, .size: 4, .value_kind: by_value}
      - {.name: heads, .offset: 96, .size: 4, .value_kind: by_value}
      - {.name: kv_share, .offset: 100, .size: 4, .value_kind: by_value}
      - {.name: shift, .offset: 104, .size: 4, .value_kind: by_value}
      - {.name: tiles, .offset: 108, .size: 4, .value_kind: by_value}
      - {.name: scale, .offset: 112, .size: 4, .value_kind: by_value}
      - {.name: q_keep, .offset: 116, .size: 4, .value_kind: by_value}
      - {.name: q_sign, .offset: 120, .size: 4, .value_kind: by_value}
...
.end_amdgpu_metadata
