// paged_attention for gfx950, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
.amdhsa_code_object_version 5

// Attention of a bf16 query of a sequence to a paged cache of fp8, heads of 128.
// Grid: sequences, kv heads, new tokens of the longest sequence.
// Arguments: q p at 0, k_cache p at 8, v_cache p at 16, out p at 24, lse p at 32, starts p at 40, lengths p at 48, table p at 56, k_scale p at 64, v_scale p at 72, q_token I at 80, q_head I at 84, k_page I at 88, k_token I at 92, k_head I at 96, v_page I at 100, v_token I at 104, v_head I at 108, table_row I at 112, k_scale_step I at 116, v_scale_step I at 120, page_shift I at 124, tokens I at 128, heads I at 132, group_size I at 136, scale f at 140, causal I at 144, q_keep I at 148, q_sign I at 152
.text
.globl paged_attention_bf16_fp8
.p2align 8
.type paged_attention_bf16_fp8,@function
paged_attention_bf16_fp8:
  .set s_kernarg, 0
  .set s_group, 2
  .set v_thread, 0
  .set s_arguments, 8
  s_load_dwordx16 s[s_arguments:s_arguments+15], s[s_kernarg:s_kernarg+1], 0
  s_load_dwordx16 s[s_arguments+16:s_arguments+31], s[s_kernarg:s_kernarg+1], 64
  s_load_dwordx8 s[s_arguments+32:s_arguments+39], s[s_kernarg:s_kernarg+1], 0x80
  s_waitcnt lgkmcnt(0)
  .set s_q, 8
  .set s_k_cache, 10
  .set s_v_cache, 12
  .set s_out, 14
  .set s_lse, 16
  .set s_starts, 18
  .set s_lengths, 20
  .set s_table, 22
  .set s_k_scale, 24
  .set s_v_scale, 26
  .set s_q_token, 28
  .set s_q_head, 29
  .set s_k_page, 30
  .set s_k_token, 31
  .set s_k_head, 32
  .set s_v_page, 33
  .set s_v_token, 34
  .set s_v_head, 35
  .set s_table_row, 36
  .set s_k_scale_step, 37
  .set s_v_scale_step, 38
  .set s_page_shift, 39
  .set s_tokens, 40
  .set s_heads, 41
  .set s_group_size, 42
  .set s_scale, 43
  .set s_causal, 44
  .set s_q_keep, 45
  .set s_q_sign, 46

  // The sequence
  .set s_four, 5
  .set s_place, 6
  .set s_table_of, 48
  .set s_token, 50
  .set s_length, 51
  .set s_after, 52
  s_mov_b32 s[s_four], 4
  s_mul_i32 s[s_place], s[s_group], s[s_four]
  s_mul_hi_u32 s[s_place+1], s[s_group], s[s_four]
  s_add_u32 s[s_place], s[s_place], s[s_starts]
  s_addc_u32 s[s_place+1], s[s_place+1], s[s_starts+1]
  s_load_dword s[s_token], s[s_place:s_place+1], 0
  s_load_dword s[s_after], s[s_place:s_place+1], 4
  s_mul_i32 s[s_table_of], s[s_group], s[s_four]
  s_mul_hi_u32 s[s_table_of+1], s[s_group], s[s_four]
  s_add_u32 s[s_table_of], s[s_table_of], s[s_lengths]
  s_addc_u32 s[s_table_of+1], s[s_table_of+1], s[s_lengths+1]
  s_load_dword s[s_length], s[s_table_of:s_table_of+1], 0
  s_waitcnt lgkmcnt(0)
  s_add_u32 s[s_token], s[s_token], s[s_group+2]
  s_cmp_ge_u32 s[s_token], s[s_after]
  s_cbranch_scc1 paged_attention_bf16_fp8.done.1
  s_sub_u32 s[s_after], s[s_after], s[s_token]
  s_sub_u32 s[s_after], s[s_after], 1
  s_mul_i32 s[s_after], s[s_after], s[s_causal]
  s_sub_u32 s[s_length], s[s_length], s[s_after]
  s_mul_i32 s[s_table_of], s[s_group], s[s_table_row]
  s_mul_hi_u32 s[s_table_of+1], s[s_group], s[s_table_row]
  s_add_u32 s[s_table_of], s[s_table_of], s[s_table]
  s_addc_u32 s[s_table_of+1], s[s_table_of+1], s[s_table+1]

  // The lane's query and its part of the keys; the wave
  .set v_query, 1
  .set v_part, 2
  .set s_wave, 5
  v_and_b32 v[v_query], 15, v[v_thread]
  v_bfe_u32 v[v_part], v[v_thread], 4, 2
  .set v_lane_16_further, 3
  .set v_lane_32_further, 4
  .set v_wave_of, 5
  v_lshrrev_b32 v[v_wave_of], 6, v[v_thread]
  s_nop 0
  v_readfirstlane_b32 s[s_wave], v[v_wave_of]
  v_and_b32 v[v_lane_16_further], 63, v[v_thread]
  v_xor_b32 v[v_lane_16_further], 16, v[v_lane_16_further]
  v_lshlrev_b32 v[v_lane_16_further], 2, v[v_lane_16_further]
  v_and_b32 v[v_lane_32_further], 63, v[v_thread]
  v_xor_b32 v[v_lane_32_further], 32, v[v_lane_32_further]
  v_lshlrev_b32 v[v_lane_32_further], 2, v[v_lane_32_further]

  // The caches of this kv head, and their scales
  .set s_k_heads, 6
  .set s_v_heads, 52
  s_mul_i32 s[s_k_heads], s[s_group+1], s[s_k_head]
  s_mul_hi_u32 s[s_k_heads+1], s[s_group+1], s[s_k_head]
  s_add_u32 s[s_k_heads], s[s_k_heads], s[s_k_cache]
  s_addc_u32 s[s_k_heads+1], s[s_k_heads+1], s[s_k_cache+1]
  s_mul_i32 s[s_v_heads], s[s_group+1], s[s_v_head]
  s_mul_hi_u32 s[s_v_heads+1], s[s_group+1], s[s_v_head]
  s_add_u32 s[s_v_heads], s[s_v_heads], s[s_v_cache]
  s_addc_u32 s[s_v_heads+1], s[s_v_heads+1], s[s_v_cache+1]
  .set s_k_scale_of_head, 54
  .set s_v_scale_of_head, 55
  s_mov_b32 s[s_k_scale_of_head], 1.0
  s_cmp_eq_u64 s[s_k_scale:s_k_scale+1], 0
  s_cbranch_scc1 paged_attention_bf16_fp8.after.2
  .set s_scale_place, 56
  s_mul_i32 s[s_scale_place], s[s_group+1], s[s_k_scale_step]
  s_mul_hi_u32 s[s_scale_place+1], s[s_group+1], s[s_k_scale_step]
  s_add_u32 s[s_scale_place], s[s_scale_place], s[s_k_scale]
  s_addc_u32 s[s_scale_place+1], s[s_scale_place+1], s[s_k_scale+1]
  s_load_dword s[s_k_scale_of_head], s[s_scale_place:s_scale_place+1], 0
  s_waitcnt lgkmcnt(0)
paged_attention_bf16_fp8.after.2:
  s_mov_b32 s[s_v_scale_of_head], 1.0
  s_cmp_eq_u64 s[s_v_scale:s_v_scale+1], 0
  s_cbranch_scc1 paged_attention_bf16_fp8.after.3
  .set s_scale_place, 56
  s_mul_i32 s[s_scale_place], s[s_group+1], s[s_v_scale_step]
  s_mul_hi_u32 s[s_scale_place+1], s[s_group+1], s[s_v_scale_step]
  s_add_u32 s[s_scale_place], s[s_scale_place], s[s_v_scale]
  s_addc_u32 s[s_scale_place+1], s[s_scale_place+1], s[s_v_scale+1]
  s_load_dword s[s_v_scale_of_head], s[s_scale_place:s_scale_place+1], 0
  s_waitcnt lgkmcnt(0)
paged_attention_bf16_fp8.after.3:

  // The queries
  .set s_q_rows, 56
  .set s_first_head, 60
  .set v_q_at, 5
  s_mul_i32 s[s_first_head], s[s_group+1], s[s_group_size]
  .set s_q_token_place, 62
  s_mul_i32 s[s_q_token_place], s[s_token], s[s_q_token]
  s_mul_hi_u32 s[s_q_token_place+1], s[s_token], s[s_q_token]
  s_add_u32 s[s_q_token_place], s[s_q_token_place], s[s_q]
  s_addc_u32 s[s_q_token_place+1], s[s_q_token_place+1], s[s_q+1]
  s_mul_i32 s[s_q_rows], s[s_first_head], s[s_q_head]
  s_mul_hi_u32 s[s_q_rows+1], s[s_first_head], s[s_q_head]
  s_add_u32 s[s_q_rows], s[s_q_rows], s[s_q_token_place]
  s_addc_u32 s[s_q_rows+1], s[s_q_rows+1], s[s_q_token_place+1]
  s_sub_u32 s[s_q_rows+2], s[s_group_size], 1
  s_mul_i32 s[s_q_rows+2], s[s_q_rows+2], s[s_q_head]
  s_add_u32 s[s_q_rows+2], s[s_q_rows+2], 0x100
  s_and_b32 s[s_q_rows+1], s[s_q_rows+1], 0xffff
  s_mov_b32 s[s_q_rows+3], 0x27000
  .set v_queries, 6
  v_mul_lo_u32 v[v_q_at], v[v_query], s[s_q_head]
  v_lshl_add_u32 v[v_q_at], v[v_part], 5, v[v_q_at]
  buffer_load_dwordx4 v[v_queries:v_queries+3], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen
  buffer_load_dwordx4 v[v_queries+4:v_queries+7], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:16
  buffer_load_dwordx4 v[v_queries+8:v_queries+11], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:128
  buffer_load_dwordx4 v[v_queries+12:v_queries+15], v[v_q_at], s[s_q_rows:s_q_rows+3], 0 offen offset:144
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

  // Nothing is summed yet
  .set v_top, 22
  .set v_total, 24
  .set v_factor, 26
  .set v_minus_top, 28
  .set v_peak, 5
  v_mov_b32 v[v_factor], s[s_scale]
  v_mov_b32 v[v_factor+1], s[s_scale]
  v_mov_b32 v[v_top], 0xff7fffff
  v_mov_b32 v[v_minus_top], 0x7f7fffff
  v_mov_b32 v[v_minus_top+1], 0x7f7fffff
  v_mov_b32 v[v_total], 0
  v_mov_b32 v[v_total+1], 0
  .set s_high_halves, 56
  s_mov_b32 s[s_high_halves], 0x7060302
  .set s_rounding, 57
  s_mov_b32 s[s_rounding], 0x8000
  v_mul_f32 v[v_factor], s[s_k_scale_of_head], v[v_factor]
  v_mul_f32 v[v_factor+1], s[s_k_scale_of_head], v[v_factor+1]
  .set v_sums, 30
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
  .set s_steps, 58
  .set s_first_key, 59
  .set s_page, 61
  .set s_last_block, 62
  s_add_u32 s[s_steps], s[s_length], 63
  s_lshr_b32 s[s_steps], s[s_steps], 6
  s_max_u32 s[s_steps], s[s_steps], 1
  s_sub_u32 s[s_last_block], s[s_length], 1
  s_max_i32 s[s_last_block], s[s_last_block], 0
  s_lshl_b32 s[s_first_key], s[s_wave], 4
  .set s_k_rows, 64
  .set s_v_rows, 68
  s_mov_b32 s[s_k_rows+3], 0x27000
  s_mov_b32 s[s_v_rows+3], 0x27000
  .set v_key_at, 62
  .set v_write_key, 64
  .set v_read_key, 66
  .set v_chunk, 68
  .set v_key, 69
  .set v_swizzle, 70
  v_and_b32 v[v_chunk], 7, v[v_thread]
  v_bfe_u32 v[v_key], v[v_thread], 3, 3
  v_mul_lo_u32 v[v_key_at], v[v_key], s[s_k_token]
  v_lshl_add_u32 v[v_key_at], v[v_chunk], 4, v[v_key_at]
  v_bfe_u32 v[v_swizzle], v[v_key], 1, 3
  v_xor_b32 v[v_swizzle], v[v_chunk], v[v_swizzle]
  v_lshlrev_b32 v[v_swizzle], 4, v[v_swizzle]
  v_lshl_add_u32 v[v_write_key], v[v_key], 7, v[v_swizzle]
  .set s_own_block, 63
  s_mul_i32 s[s_own_block], s[s_wave], 0x800
  v_add_u32 v[v_write_key], s[s_own_block], v[v_write_key]
  v_bfe_u32 v[v_key], v[v_thread], 3, 3
  v_add_u32 v[v_key], 8, v[v_key]
  v_mul_lo_u32 v[v_key_at+1], v[v_key], s[s_k_token]
  v_lshl_add_u32 v[v_key_at+1], v[v_chunk], 4, v[v_key_at+1]
  v_bfe_u32 v[v_swizzle], v[v_key], 1, 3
  v_xor_b32 v[v_swizzle], v[v_chunk], v[v_swizzle]
  v_lshlrev_b32 v[v_swizzle], 4, v[v_swizzle]
  v_lshl_add_u32 v[v_write_key+1], v[v_key], 7, v[v_swizzle]
  .set s_own_block, 63
  s_mul_i32 s[s_own_block], s[s_wave], 0x800
  v_add_u32 v[v_write_key+1], s[s_own_block], v[v_write_key+1]
  v_add_u32 v[v_chunk], 0, v[v_part]
  v_bfe_u32 v[v_swizzle], v[v_query], 1, 3
  v_xor_b32 v[v_swizzle], v[v_chunk], v[v_swizzle]
  v_lshlrev_b32 v[v_swizzle], 4, v[v_swizzle]
  v_lshl_add_u32 v[v_read_key], v[v_query], 7, v[v_swizzle]
  .set s_own_block, 63
  s_mul_i32 s[s_own_block], s[s_wave], 0x800
  v_add_u32 v[v_read_key], s[s_own_block], v[v_read_key]
  v_add_u32 v[v_chunk], 4, v[v_part]
  v_bfe_u32 v[v_swizzle], v[v_query], 1, 3
  v_xor_b32 v[v_swizzle], v[v_chunk], v[v_swizzle]
  v_lshlrev_b32 v[v_swizzle], 4, v[v_swizzle]
  v_lshl_add_u32 v[v_read_key+1], v[v_query], 7, v[v_swizzle]
  .set s_own_block, 63
  s_mul_i32 s[s_own_block], s[s_wave], 0x800
  v_add_u32 v[v_read_key+1], s[s_own_block], v[v_read_key+1]
  .set v_value_at, 68
  .set v_key, 72
  v_lshl_add_u32 v[v_key], v[v_part], 2, 0
  v_mul_lo_u32 v[v_value_at], v[v_key], s[s_v_token]
  v_lshl_add_u32 v[v_value_at], v[v_query], 3, v[v_value_at]
  v_lshl_add_u32 v[v_key], v[v_part], 2, 1
  v_mul_lo_u32 v[v_value_at+1], v[v_key], s[s_v_token]
  v_lshl_add_u32 v[v_value_at+1], v[v_query], 3, v[v_value_at+1]
  v_lshl_add_u32 v[v_key], v[v_part], 2, 2
  v_mul_lo_u32 v[v_value_at+2], v[v_key], s[s_v_token]
  v_lshl_add_u32 v[v_value_at+2], v[v_query], 3, v[v_value_at+2]
  v_lshl_add_u32 v[v_key], v[v_part], 2, 3
  v_mul_lo_u32 v[v_value_at+3], v[v_key], s[s_v_token]
  v_lshl_add_u32 v[v_value_at+3], v[v_query], 3, v[v_value_at+3]
  .set v_keys, 72
  .set v_values, 80
  .set v_scores, 88

  // Before the loop: the first block, and the page of the second
  .set s_entry, 63
  .set s_entry_place, 72
  s_min_u32 s[s_entry], s[s_first_key], s[s_last_block]
  s_lshr_b32 s[s_entry], s[s_entry], s[s_page_shift]
  s_lshl_b32 s[s_entry], s[s_entry], 2
  s_add_u32 s[s_entry_place], s[s_table_of], s[s_entry]
  s_addc_u32 s[s_entry_place+1], s[s_table_of+1], 0
  s_load_dword s[s_page], s[s_entry_place:s_entry_place+1], 0
  s_waitcnt lgkmcnt(0)
  .set s_left, 63
  .set s_inside, 72
  s_sub_i32 s[s_left], s[s_length], s[s_first_key]
  s_min_i32 s[s_left], s[s_left], 16
  s_lshr_b32 s[s_inside], s[s_first_key], s[s_page_shift]
  s_lshl_b32 s[s_inside], s[s_inside], s[s_page_shift]
  s_sub_u32 s[s_inside], s[s_first_key], s[s_inside]
  s_mul_i32 s[s_k_rows], s[s_page], s[s_k_page]
  s_mul_hi_u32 s[s_k_rows+1], s[s_page], s[s_k_page]
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_heads]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], s[s_k_heads+1]
  .set s_offset, 73
  s_mul_i32 s[s_offset], s[s_inside], s[s_k_token]
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_offset]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  s_and_b32 s[s_k_rows+1], s[s_k_rows+1], 0xffff
  s_sub_i32 s[s_k_rows+2], s[s_left], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x80
  s_cmp_gt_i32 s[s_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_mul_i32 s[s_v_rows], s[s_page], s[s_v_page]
  s_mul_hi_u32 s[s_v_rows+1], s[s_page], s[s_v_page]
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_v_heads]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], s[s_v_heads+1]
  .set s_offset, 73
  s_mul_i32 s[s_offset], s[s_inside], s[s_v_token]
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_offset]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], 0
  s_and_b32 s[s_v_rows+1], s[s_v_rows+1], 0xffff
  s_sub_i32 s[s_v_rows+2], s[s_left], 1
  s_mul_i32 s[s_v_rows+2], s[s_v_rows+2], s[s_v_token]
  s_add_u32 s[s_v_rows+2], s[s_v_rows+2], 0x80
  s_cmp_gt_i32 s[s_left], 0
  s_cselect_b32 s[s_v_rows+2], s[s_v_rows+2], 0
  s_add_u32 s[s_first_key], s[s_first_key], 64
  .set s_entry, 63
  .set s_entry_place, 72
  s_min_u32 s[s_entry], s[s_first_key], s[s_last_block]
  s_lshr_b32 s[s_entry], s[s_entry], s[s_page_shift]
  s_lshl_b32 s[s_entry], s[s_entry], 2
  s_add_u32 s[s_entry_place], s[s_table_of], s[s_entry]
  s_addc_u32 s[s_entry_place+1], s[s_table_of+1], 0
  s_load_dword s[s_page], s[s_entry_place:s_entry_place+1], 0
  buffer_load_dwordx4 v[v_keys:v_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_keys+4:v_keys+7], v[v_key_at+1], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values:v_values+1], v[v_value_at], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+2:v_values+3], v[v_value_at+1], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+4:v_values+5], v[v_value_at+2], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+6:v_values+7], v[v_value_at+3], s[s_v_rows:s_v_rows+3], 0 offen
paged_attention_bf16_fp8.blocks.4:

  // Scores
  .set s_left_of_block, 63
  s_sub_i32 s[s_left_of_block], s[s_length], s[s_first_key]
  s_add_i32 s[s_left_of_block], s[s_left_of_block], 64
  s_waitcnt vmcnt(4)
  ds_write_b128 v[v_write_key], v[v_keys:v_keys+3]
  ds_write_b128 v[v_write_key+1], v[v_keys+4:v_keys+7]
  .set v_own_keys, 92
  ds_read_b128 v[v_own_keys:v_own_keys+3], v[v_read_key]
  ds_read_b128 v[v_own_keys+4:v_own_keys+7], v[v_read_key+1]
  s_waitcnt lgkmcnt(0)
  s_waitcnt lgkmcnt(0)
  .set s_left, 72
  .set s_inside, 73
  s_sub_i32 s[s_left], s[s_length], s[s_first_key]
  s_min_i32 s[s_left], s[s_left], 16
  s_lshr_b32 s[s_inside], s[s_first_key], s[s_page_shift]
  s_lshl_b32 s[s_inside], s[s_inside], s[s_page_shift]
  s_sub_u32 s[s_inside], s[s_first_key], s[s_inside]
  s_mul_i32 s[s_k_rows], s[s_page], s[s_k_page]
  s_mul_hi_u32 s[s_k_rows+1], s[s_page], s[s_k_page]
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_k_heads]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], s[s_k_heads+1]
  .set s_offset, 74
  s_mul_i32 s[s_offset], s[s_inside], s[s_k_token]
  s_add_u32 s[s_k_rows], s[s_k_rows], s[s_offset]
  s_addc_u32 s[s_k_rows+1], s[s_k_rows+1], 0
  s_and_b32 s[s_k_rows+1], s[s_k_rows+1], 0xffff
  s_sub_i32 s[s_k_rows+2], s[s_left], 1
  s_mul_i32 s[s_k_rows+2], s[s_k_rows+2], s[s_k_token]
  s_add_u32 s[s_k_rows+2], s[s_k_rows+2], 0x80
  s_cmp_gt_i32 s[s_left], 0
  s_cselect_b32 s[s_k_rows+2], s[s_k_rows+2], 0
  s_mul_i32 s[s_v_rows], s[s_page], s[s_v_page]
  s_mul_hi_u32 s[s_v_rows+1], s[s_page], s[s_v_page]
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_v_heads]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], s[s_v_heads+1]
  .set s_offset, 74
  s_mul_i32 s[s_offset], s[s_inside], s[s_v_token]
  s_add_u32 s[s_v_rows], s[s_v_rows], s[s_offset]
  s_addc_u32 s[s_v_rows+1], s[s_v_rows+1], 0
  s_and_b32 s[s_v_rows+1], s[s_v_rows+1], 0xffff
  s_sub_i32 s[s_v_rows+2], s[s_left], 1
  s_mul_i32 s[s_v_rows+2], s[s_v_rows+2], s[s_v_token]
  s_add_u32 s[s_v_rows+2], s[s_v_rows+2], 0x80
  s_cmp_gt_i32 s[s_left], 0
  s_cselect_b32 s[s_v_rows+2], s[s_v_rows+2], 0
  s_add_u32 s[s_first_key], s[s_first_key], 64
  .set s_entry, 72
  .set s_entry_place, 74
  s_min_u32 s[s_entry], s[s_first_key], s[s_last_block]
  s_lshr_b32 s[s_entry], s[s_entry], s[s_page_shift]
  s_lshl_b32 s[s_entry], s[s_entry], 2
  s_add_u32 s[s_entry_place], s[s_table_of], s[s_entry]
  s_addc_u32 s[s_entry_place+1], s[s_table_of+1], 0
  s_load_dword s[s_page], s[s_entry_place:s_entry_place+1], 0
  buffer_load_dwordx4 v[v_keys:v_keys+3], v[v_key_at], s[s_k_rows:s_k_rows+3], 0 offen
  buffer_load_dwordx4 v[v_keys+4:v_keys+7], v[v_key_at+1], s[s_k_rows:s_k_rows+3], 0 offen
  .set v_pieces, 100
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys] src0_sel:WORD_1
  v_perm_b32 v[v_pieces], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+1], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+1]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+1] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+2], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+3], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+2]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+2] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+4], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+5], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+3]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+3] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+6], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+7], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+4]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+4] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+8], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+9], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+5]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+5] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+10], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+11], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+6]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+6] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+12], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+13], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  .set v_decoded, 116
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_own_keys+7]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_own_keys+7] src0_sel:WORD_1
  v_perm_b32 v[v_pieces+14], v[v_decoded+1], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_pieces+15], v[v_decoded+3], v[v_decoded+2], s[s_high_halves]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces:v_pieces+1], v[v_queries:v_queries+1], 0
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+2:v_pieces+3], v[v_queries+2:v_queries+3], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+4:v_pieces+5], v[v_queries+4:v_queries+5], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+6:v_pieces+7], v[v_queries+6:v_queries+7], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+8:v_pieces+9], v[v_queries+8:v_queries+9], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+10:v_pieces+11], v[v_queries+10:v_queries+11], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+12:v_pieces+13], v[v_queries+12:v_queries+13], v[v_scores:v_scores+3]
  v_mfma_f32_16x16x16_bf16 v[v_scores:v_scores+3], v[v_pieces+14:v_pieces+15], v[v_queries+14:v_queries+15], v[v_scores:v_scores+3]

  // Without those past the end
  .set v_first_of_part, 92
  .set v_weightless, 93
  v_mov_b32 v[v_weightless], 0xff800000
  v_lshlrev_b32 v[v_first_of_part], 2, v[v_part]
  v_sub_u32 v[v_first_of_part], s[s_left_of_block], v[v_first_of_part]
  v_cmp_lt_i32 vcc, 0, v[v_first_of_part]
  s_nop 3
  v_cndmask_b32 v[v_scores], v[v_weightless], v[v_scores], vcc
  v_cmp_lt_i32 vcc, 1, v[v_first_of_part]
  s_nop 1
  v_cndmask_b32 v[v_scores+1], v[v_weightless], v[v_scores+1], vcc
  v_cmp_lt_i32 vcc, 2, v[v_first_of_part]
  s_nop 1
  v_cndmask_b32 v[v_scores+2], v[v_weightless], v[v_scores+2], vcc
  v_cmp_lt_i32 vcc, 3, v[v_first_of_part]
  s_nop 1
  v_cndmask_b32 v[v_scores+3], v[v_weightless], v[v_scores+3], vcc

  // Shares
  v_max3_f32 v[v_peak], v[v_scores], v[v_scores+1], v[v_scores+2]
  v_max_f32 v[v_peak], v[v_peak], v[v_scores+3]
  .set v_excess, 92
  v_sub_f32 v[v_excess], v[v_peak], v[v_top]
  v_mul_f32 v[v_excess], v[v_factor], v[v_excess]
  v_cmp_lt_f32 vcc, 0x41000000, v[v_excess]
  s_cbranch_vccz paged_attention_bf16_fp8.after.5

  // Move the references up
  .set v_others, 92
  ds_bpermute_b32 v[v_others], v[v_lane_16_further], v[v_peak]
  s_waitcnt lgkmcnt(0)
  v_max_f32 v[v_peak], v[v_peak], v[v_others]
  ds_bpermute_b32 v[v_others], v[v_lane_32_further], v[v_peak]
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
paged_attention_bf16_fp8.after.5:
  .set v_shares, 92
  v_pk_add_f32 v[v_scores:v_scores+1], v[v_scores:v_scores+1], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_add_f32 v[v_scores+2:v_scores+3], v[v_scores+2:v_scores+3], v[v_minus_top:v_minus_top+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores:v_scores+1], v[v_scores:v_scores+1], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_scores+2:v_scores+3], v[v_scores+2:v_scores+3], v[v_factor:v_factor+1] op_sel_hi:[1,0]
  v_exp_f32 v[v_scores], v[v_scores]
  v_exp_f32 v[v_scores+1], v[v_scores+1]
  v_exp_f32 v[v_scores+2], v[v_scores+2]
  v_exp_f32 v[v_scores+3], v[v_scores+3]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores:v_scores+1]
  v_pk_add_f32 v[v_total:v_total+1], v[v_total:v_total+1], v[v_scores+2:v_scores+3]
  v_cvt_pk_bf16_f32 v[v_shares], v[v_scores], v[v_scores+1]
  v_cvt_pk_bf16_f32 v[v_shares+1], v[v_scores+2], v[v_scores+3]

  // Values
  s_waitcnt vmcnt(2)
  .set v_columns, 94
  .set v_decoded, 110
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_values]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_values] src0_sel:WORD_1
  v_cvt_pk_f32_fp8 v[v_decoded+4:v_decoded+5], v[v_values+2]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+6:v_decoded+7], v[v_values+2] src0_sel:WORD_1
  v_perm_b32 v[v_columns], v[v_decoded+4], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_columns+2], v[v_decoded+5], v[v_decoded+1], s[s_high_halves]
  v_perm_b32 v[v_columns+4], v[v_decoded+6], v[v_decoded+2], s[s_high_halves]
  v_perm_b32 v[v_columns+6], v[v_decoded+7], v[v_decoded+3], s[s_high_halves]
  .set v_decoded, 110
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_values+4]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_values+4] src0_sel:WORD_1
  v_cvt_pk_f32_fp8 v[v_decoded+4:v_decoded+5], v[v_values+6]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+6:v_decoded+7], v[v_values+6] src0_sel:WORD_1
  v_perm_b32 v[v_columns+1], v[v_decoded+4], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_columns+3], v[v_decoded+5], v[v_decoded+1], s[s_high_halves]
  v_perm_b32 v[v_columns+5], v[v_decoded+6], v[v_decoded+2], s[s_high_halves]
  v_perm_b32 v[v_columns+7], v[v_decoded+7], v[v_decoded+3], s[s_high_halves]
  .set v_decoded, 110
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_values+1]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_values+1] src0_sel:WORD_1
  v_cvt_pk_f32_fp8 v[v_decoded+4:v_decoded+5], v[v_values+3]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+6:v_decoded+7], v[v_values+3] src0_sel:WORD_1
  v_perm_b32 v[v_columns+8], v[v_decoded+4], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_columns+10], v[v_decoded+5], v[v_decoded+1], s[s_high_halves]
  v_perm_b32 v[v_columns+12], v[v_decoded+6], v[v_decoded+2], s[s_high_halves]
  v_perm_b32 v[v_columns+14], v[v_decoded+7], v[v_decoded+3], s[s_high_halves]
  .set v_decoded, 110
  v_cvt_pk_f32_fp8 v[v_decoded:v_decoded+1], v[v_values+5]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+2:v_decoded+3], v[v_values+5] src0_sel:WORD_1
  v_cvt_pk_f32_fp8 v[v_decoded+4:v_decoded+5], v[v_values+7]
  v_cvt_pk_f32_fp8_sdwa v[v_decoded+6:v_decoded+7], v[v_values+7] src0_sel:WORD_1
  v_perm_b32 v[v_columns+9], v[v_decoded+4], v[v_decoded], s[s_high_halves]
  v_perm_b32 v[v_columns+11], v[v_decoded+5], v[v_decoded+1], s[s_high_halves]
  v_perm_b32 v[v_columns+13], v[v_decoded+6], v[v_decoded+2], s[s_high_halves]
  v_perm_b32 v[v_columns+15], v[v_decoded+7], v[v_decoded+3], s[s_high_halves]
  buffer_load_dwordx2 v[v_values:v_values+1], v[v_value_at], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+2:v_values+3], v[v_value_at+1], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+4:v_values+5], v[v_value_at+2], s[s_v_rows:s_v_rows+3], 0 offen
  buffer_load_dwordx2 v[v_values+6:v_values+7], v[v_value_at+3], s[s_v_rows:s_v_rows+3], 0 offen
  v_mfma_f32_16x16x16_bf16 v[v_sums:v_sums+3], v[v_columns:v_columns+1], v[v_shares:v_shares+1], v[v_sums:v_sums+3]
  v_mfma_f32_16x16x16_bf16 v[v_sums+4:v_sums+7], v[v_columns+2:v_columns+3], v[v_shares:v_shares+1], v[v_sums+4:v_sums+7]
  v_mfma_f32_16x16x16_bf16 v[v_sums+8:v_sums+11], v[v_columns+4:v_columns+5], v[v_shares:v_shares+1], v[v_sums+8:v_sums+11]
  v_mfma_f32_16x16x16_bf16 v[v_sums+12:v_sums+15], v[v_columns+6:v_columns+7], v[v_shares:v_shares+1], v[v_sums+12:v_sums+15]
  v_mfma_f32_16x16x16_bf16 v[v_sums+16:v_sums+19], v[v_columns+8:v_columns+9], v[v_shares:v_shares+1], v[v_sums+16:v_sums+19]
  v_mfma_f32_16x16x16_bf16 v[v_sums+20:v_sums+23], v[v_columns+10:v_columns+11], v[v_shares:v_shares+1], v[v_sums+20:v_sums+23]
  v_mfma_f32_16x16x16_bf16 v[v_sums+24:v_sums+27], v[v_columns+12:v_columns+13], v[v_shares:v_shares+1], v[v_sums+24:v_sums+27]
  v_mfma_f32_16x16x16_bf16 v[v_sums+28:v_sums+31], v[v_columns+14:v_columns+15], v[v_shares:v_shares+1], v[v_sums+28:v_sums+31]
  s_sub_u32 s[s_steps], s[s_steps], 1
  s_cmp_lg_u32 s[s_steps], 0
  s_cbranch_scc1 paged_attention_bf16_fp8.blocks.4
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_f32 v[v_total], v[v_total], v[v_total+1]
  .set v_others, 6
  ds_bpermute_b32 v[v_others], v[v_lane_16_further], v[v_total]
  s_waitcnt lgkmcnt(0)
  v_add_f32 v[v_total], v[v_total], v[v_others]
  .set v_others, 6
  ds_bpermute_b32 v[v_others], v[v_lane_32_further], v[v_total]
  s_waitcnt lgkmcnt(0)
  v_add_f32 v[v_total], v[v_total], v[v_others]

  // The references and sums of all waves
  .set v_lds_at, 6
  s_barrier
  v_lshlrev_b32 v[v_lds_at], 2, v[v_query]
  .set v_own, 7
  v_lshl_add_u32 v[v_own], s[s_wave], 6, v[v_lds_at]
  s_mov_b32 exec_lo, 0xffff
  s_mov_b32 exec_hi, 0
  ds_write_b32 v[v_own], v[v_top]                              // references
  ds_write_b32 v[v_own], v[v_total] offset:256                 // sums
  s_mov_b64 exec, -1
  s_waitcnt lgkmcnt(0)
  s_barrier
  .set v_tops, 8
  .set v_totals, 12
  ds_read_b32 v[v_tops], v[v_lds_at]
  ds_read_b32 v[v_totals], v[v_lds_at] offset:256
  ds_read_b32 v[v_tops+1], v[v_lds_at] offset:64
  ds_read_b32 v[v_totals+1], v[v_lds_at] offset:320
  ds_read_b32 v[v_tops+2], v[v_lds_at] offset:128
  ds_read_b32 v[v_totals+2], v[v_lds_at] offset:384
  ds_read_b32 v[v_tops+3], v[v_lds_at] offset:192
  ds_read_b32 v[v_totals+3], v[v_lds_at] offset:448
  s_waitcnt lgkmcnt(0)
  .set v_common, 7
  .set v_whole, 16
  v_max3_f32 v[v_common], v[v_tops], v[v_tops+1], v[v_tops+2]
  v_max_f32 v[v_common], v[v_common], v[v_tops+3]
  v_mov_b32 v[v_whole], 0
  v_sub_f32 v[v_tops], v[v_tops], v[v_common]
  v_mul_f32 v[v_tops], v[v_factor], v[v_tops]
  v_exp_f32 v[v_tops], v[v_tops]
  s_nop 0
  v_fma_f32 v[v_whole], v[v_tops], v[v_totals], v[v_whole]
  v_sub_f32 v[v_tops+1], v[v_tops+1], v[v_common]
  v_mul_f32 v[v_tops+1], v[v_factor], v[v_tops+1]
  v_exp_f32 v[v_tops+1], v[v_tops+1]
  s_nop 0
  v_fma_f32 v[v_whole], v[v_tops+1], v[v_totals+1], v[v_whole]
  v_sub_f32 v[v_tops+2], v[v_tops+2], v[v_common]
  v_mul_f32 v[v_tops+2], v[v_factor], v[v_tops+2]
  v_exp_f32 v[v_tops+2], v[v_tops+2]
  s_nop 0
  v_fma_f32 v[v_whole], v[v_tops+2], v[v_totals+2], v[v_whole]
  v_sub_f32 v[v_tops+3], v[v_tops+3], v[v_common]
  v_mul_f32 v[v_tops+3], v[v_factor], v[v_tops+3]
  v_exp_f32 v[v_tops+3], v[v_tops+3]
  s_nop 0
  v_fma_f32 v[v_whole], v[v_tops+3], v[v_totals+3], v[v_whole]
  .set v_weight, 17
  v_sub_f32 v[v_top], v[v_top], v[v_common]
  v_mul_f32 v[v_top], v[v_factor], v[v_top]
  v_exp_f32 v[v_top], v[v_top]
  v_rcp_f32 v[v_weight], v[v_whole]
  .set v_nothing, 18
  v_mov_b32 v[v_nothing], 0
  v_cmp_eq_f32 vcc, 0, v[v_whole]
  s_nop 1
  v_cndmask_b32 v[v_weight], v[v_weight], v[v_nothing], vcc
  v_mul_f32 v[v_weight], v[v_weight], v[v_top]
  v_mul_f32 v[v_weight], s[s_v_scale_of_head], v[v_weight]

  // The log-sum-exp
  .set v_logs, 18
  .set v_log_at, 19
  .set s_log_rows, 72
  v_log_f32 v[v_logs], v[v_whole]
  s_nop 0
  v_fma_f32 v[v_logs], v[v_common], v[v_factor], v[v_logs]
  v_mul_f32 v[v_logs], 0x3f317218, v[v_logs]
  .set s_log_bytes, 63
  s_lshl_b32 s[s_log_bytes], s[s_tokens], 2
  s_mul_i32 s[s_log_rows], s[s_first_head], s[s_log_bytes]
  s_mul_hi_u32 s[s_log_rows+1], s[s_first_head], s[s_log_bytes]
  s_add_u32 s[s_log_rows], s[s_log_rows], s[s_lse]
  s_addc_u32 s[s_log_rows+1], s[s_log_rows+1], s[s_lse+1]
  s_sub_u32 s[s_log_rows+2], s[s_group_size], 1
  s_mul_i32 s[s_log_rows+2], s[s_log_rows+2], s[s_log_bytes]
  s_add_u32 s[s_log_rows+2], s[s_log_rows+2], 4
  v_mul_lo_u32 v[v_log_at], v[v_query], s[s_log_bytes]
  s_lshl_b32 s[s_log_bytes], s[s_token], 2
  s_add_u32 s[s_log_rows], s[s_log_rows], s[s_log_bytes]
  s_addc_u32 s[s_log_rows+1], s[s_log_rows+1], 0
  s_cmp_eq_u64 s[s_lse:s_lse+1], 0
  s_cselect_b32 s[s_log_rows+2], 0, s[s_log_rows+2]
  s_cmp_lg_u32 s[s_wave], 0
  s_cselect_b32 s[s_log_rows+2], 0, s[s_log_rows+2]
  s_and_b32 s[s_log_rows+1], s[s_log_rows+1], 0xffff
  s_mov_b32 s[s_log_rows+3], 0x27000
  s_mov_b32 exec_lo, 0xffff
  s_mov_b32 exec_hi, 0
  buffer_store_dword v[v_logs], v[v_log_at], s[s_log_rows:s_log_rows+3], 0 offen
  s_mov_b64 exec, -1

  // Each wave's part of the result: half of its rows at a time, which two waves add up
  v_and_b32 v[v_lds_at], 63, v[v_thread]
  v_lshlrev_b32 v[v_lds_at], 4, v[v_lds_at]
  .set v_write_at, 18
  .set s_lds_base, 63
  s_lshl_b32 s[s_lds_base], s[s_wave], 12
  v_add_u32 v[v_write_at], s[s_lds_base], v[v_lds_at]
  s_and_b32 s[s_lds_base], s[s_wave], 1
  s_lshl_b32 s[s_lds_base], s[s_lds_base], 11
  v_add_u32 v[v_lds_at], s[s_lds_base], v[v_lds_at]
  .set v_eight, 8
  .set v_parts, 62
  s_barrier
  v_mul_f32 v[v_eight], v[v_weight], v[v_sums]
  v_mul_f32 v[v_eight+1], v[v_weight], v[v_sums+4]
  v_mul_f32 v[v_eight+2], v[v_weight], v[v_sums+8]
  v_mul_f32 v[v_eight+3], v[v_weight], v[v_sums+12]
  v_mul_f32 v[v_eight+4], v[v_weight], v[v_sums+16]
  v_mul_f32 v[v_eight+5], v[v_weight], v[v_sums+20]
  v_mul_f32 v[v_eight+6], v[v_weight], v[v_sums+24]
  v_mul_f32 v[v_eight+7], v[v_weight], v[v_sums+28]
  ds_write_b128 v[v_write_at], v[v_eight:v_eight+3] offset:0
  ds_write_b128 v[v_write_at], v[v_eight+4:v_eight+7] offset:1024
  v_mul_f32 v[v_eight], v[v_weight], v[v_sums+1]
  v_mul_f32 v[v_eight+1], v[v_weight], v[v_sums+5]
  v_mul_f32 v[v_eight+2], v[v_weight], v[v_sums+9]
  v_mul_f32 v[v_eight+3], v[v_weight], v[v_sums+13]
  v_mul_f32 v[v_eight+4], v[v_weight], v[v_sums+17]
  v_mul_f32 v[v_eight+5], v[v_weight], v[v_sums+21]
  v_mul_f32 v[v_eight+6], v[v_weight], v[v_sums+25]
  v_mul_f32 v[v_eight+7], v[v_weight], v[v_sums+29]
  ds_write_b128 v[v_write_at], v[v_eight:v_eight+3] offset:2048
  ds_write_b128 v[v_write_at], v[v_eight+4:v_eight+7] offset:3072
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[v_parts:v_parts+3], v[v_lds_at]
  ds_read_b128 v[v_parts+4:v_parts+7], v[v_lds_at] offset:1024
  ds_read_b128 v[v_parts+8:v_parts+11], v[v_lds_at] offset:4096
  ds_read_b128 v[v_parts+12:v_parts+15], v[v_lds_at] offset:5120
  ds_read_b128 v[v_parts+16:v_parts+19], v[v_lds_at] offset:8192
  ds_read_b128 v[v_parts+20:v_parts+23], v[v_lds_at] offset:9216
  ds_read_b128 v[v_parts+24:v_parts+27], v[v_lds_at] offset:12288
  ds_read_b128 v[v_parts+28:v_parts+31], v[v_lds_at] offset:13312
  s_waitcnt lgkmcnt(4)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+8:v_parts+9]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+10:v_parts+11]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+12:v_parts+13]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+14:v_parts+15]
  s_waitcnt lgkmcnt(2)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+16:v_parts+17]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+18:v_parts+19]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+20:v_parts+21]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+22:v_parts+23]
  s_waitcnt lgkmcnt(0)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+24:v_parts+25]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+26:v_parts+27]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+28:v_parts+29]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+30:v_parts+31]
  s_lshr_b32 s[s_lds_base], s[s_wave], 1
  s_cmp_eq_u32 s[s_lds_base], 0
  s_cbranch_scc0 paged_attention_bf16_fp8.after.6

  // Store
  .set s_out_rows, 72
  .set v_packed, 94
  .set v_out_at, 19
  .set s_out_row, 76
  .set s_row_bytes, 77
  s_mul_i32 s[s_out_row], s[s_token], s[s_heads]
  s_add_u32 s[s_out_row], s[s_out_row], s[s_first_head]
  s_mov_b32 s[s_row_bytes], 0x100
  s_mul_i32 s[s_out_rows], s[s_out_row], s[s_row_bytes]
  s_mul_hi_u32 s[s_out_rows+1], s[s_out_row], s[s_row_bytes]
  s_add_u32 s[s_out_rows], s[s_out_rows], s[s_out]
  s_addc_u32 s[s_out_rows+1], s[s_out_rows+1], s[s_out+1]
  s_lshl_b32 s[s_out_rows+2], s[s_group_size], 8
  s_and_b32 s[s_out_rows+1], s[s_out_rows+1], 0xffff
  s_mov_b32 s[s_out_rows+3], 0x27000
  v_cvt_pk_bf16_f32 v[v_packed], v[v_parts], v[v_parts+1]
  v_cvt_pk_bf16_f32 v[v_packed+1], v[v_parts+2], v[v_parts+3]
  v_cvt_pk_bf16_f32 v[v_packed+2], v[v_parts+4], v[v_parts+5]
  v_cvt_pk_bf16_f32 v[v_packed+3], v[v_parts+6], v[v_parts+7]
  v_lshl_add_u32 v[v_out_at], v[v_part], 2, s[s_wave]
  v_lshlrev_b32 v[v_out_at], 4, v[v_out_at]
  v_lshl_add_u32 v[v_out_at], v[v_query], 8, v[v_out_at]
  buffer_store_dwordx4 v[v_packed:v_packed+3], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen
  s_waitcnt vmcnt(0)
paged_attention_bf16_fp8.after.6:
  s_barrier
  v_mul_f32 v[v_eight], v[v_weight], v[v_sums+2]
  v_mul_f32 v[v_eight+1], v[v_weight], v[v_sums+6]
  v_mul_f32 v[v_eight+2], v[v_weight], v[v_sums+10]
  v_mul_f32 v[v_eight+3], v[v_weight], v[v_sums+14]
  v_mul_f32 v[v_eight+4], v[v_weight], v[v_sums+18]
  v_mul_f32 v[v_eight+5], v[v_weight], v[v_sums+22]
  v_mul_f32 v[v_eight+6], v[v_weight], v[v_sums+26]
  v_mul_f32 v[v_eight+7], v[v_weight], v[v_sums+30]
  ds_write_b128 v[v_write_at], v[v_eight:v_eight+3] offset:0
  ds_write_b128 v[v_write_at], v[v_eight+4:v_eight+7] offset:1024
  v_mul_f32 v[v_eight], v[v_weight], v[v_sums+3]
  v_mul_f32 v[v_eight+1], v[v_weight], v[v_sums+7]
  v_mul_f32 v[v_eight+2], v[v_weight], v[v_sums+11]
  v_mul_f32 v[v_eight+3], v[v_weight], v[v_sums+15]
  v_mul_f32 v[v_eight+4], v[v_weight], v[v_sums+19]
  v_mul_f32 v[v_eight+5], v[v_weight], v[v_sums+23]
  v_mul_f32 v[v_eight+6], v[v_weight], v[v_sums+27]
  v_mul_f32 v[v_eight+7], v[v_weight], v[v_sums+31]
  ds_write_b128 v[v_write_at], v[v_eight:v_eight+3] offset:2048
  ds_write_b128 v[v_write_at], v[v_eight+4:v_eight+7] offset:3072
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[v_parts:v_parts+3], v[v_lds_at]
  ds_read_b128 v[v_parts+4:v_parts+7], v[v_lds_at] offset:1024
  ds_read_b128 v[v_parts+8:v_parts+11], v[v_lds_at] offset:4096
  ds_read_b128 v[v_parts+12:v_parts+15], v[v_lds_at] offset:5120
  ds_read_b128 v[v_parts+16:v_parts+19], v[v_lds_at] offset:8192
  ds_read_b128 v[v_parts+20:v_parts+23], v[v_lds_at] offset:9216
  ds_read_b128 v[v_parts+24:v_parts+27], v[v_lds_at] offset:12288
  ds_read_b128 v[v_parts+28:v_parts+31], v[v_lds_at] offset:13312
  s_waitcnt lgkmcnt(4)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+8:v_parts+9]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+10:v_parts+11]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+12:v_parts+13]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+14:v_parts+15]
  s_waitcnt lgkmcnt(2)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+16:v_parts+17]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+18:v_parts+19]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+20:v_parts+21]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+22:v_parts+23]
  s_waitcnt lgkmcnt(0)
  v_pk_add_f32 v[v_parts:v_parts+1], v[v_parts:v_parts+1], v[v_parts+24:v_parts+25]
  v_pk_add_f32 v[v_parts+2:v_parts+3], v[v_parts+2:v_parts+3], v[v_parts+26:v_parts+27]
  v_pk_add_f32 v[v_parts+4:v_parts+5], v[v_parts+4:v_parts+5], v[v_parts+28:v_parts+29]
  v_pk_add_f32 v[v_parts+6:v_parts+7], v[v_parts+6:v_parts+7], v[v_parts+30:v_parts+31]
  s_lshr_b32 s[s_lds_base], s[s_wave], 1
  s_cmp_eq_u32 s[s_lds_base], 1
  s_cbranch_scc0 paged_attention_bf16_fp8.after.7

  // Store
  .set s_out_rows, 72
  .set v_packed, 94
  .set v_out_at, 19
  .set s_out_row, 76
  .set s_row_bytes, 77
  s_mul_i32 s[s_out_row], s[s_token], s[s_heads]
  s_add_u32 s[s_out_row], s[s_out_row], s[s_first_head]
  s_mov_b32 s[s_row_bytes], 0x100
  s_mul_i32 s[s_out_rows], s[s_out_row], s[s_row_bytes]
  s_mul_hi_u32 s[s_out_rows+1], s[s_out_row], s[s_row_bytes]
  s_add_u32 s[s_out_rows], s[s_out_rows], s[s_out]
  s_addc_u32 s[s_out_rows+1], s[s_out_rows+1], s[s_out+1]
  s_lshl_b32 s[s_out_rows+2], s[s_group_size], 8
  s_and_b32 s[s_out_rows+1], s[s_out_rows+1], 0xffff
  s_mov_b32 s[s_out_rows+3], 0x27000
  v_cvt_pk_bf16_f32 v[v_packed], v[v_parts], v[v_parts+1]
  v_cvt_pk_bf16_f32 v[v_packed+1], v[v_parts+2], v[v_parts+3]
  v_cvt_pk_bf16_f32 v[v_packed+2], v[v_parts+4], v[v_parts+5]
  v_cvt_pk_bf16_f32 v[v_packed+3], v[v_parts+6], v[v_parts+7]
  v_lshl_add_u32 v[v_out_at], v[v_part], 2, s[s_wave]
  v_lshlrev_b32 v[v_out_at], 4, v[v_out_at]
  v_lshl_add_u32 v[v_out_at], v[v_query], 8, v[v_out_at]
  buffer_store_dwordx4 v[v_packed:v_packed+3], v[v_out_at], s[s_out_rows:s_out_rows+3], 0 offen
  s_waitcnt vmcnt(0)
paged_attention_bf16_fp8.after.7:
paged_attention_bf16_fp8.done.1:
  s_endpgm
.paged_attention_bf16_fp8_end:
.size paged_attention_bf16_fp8, .paged_attention_bf16_fp8_end - paged_attention_bf16_fp8

.rodata
.p2align 6
.amdhsa_kernel paged_attention_bf16_fp8
  .amdhsa_group_segment_fixed_size 16384
  .amdhsa_kernarg_size 160
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_sgpr_workgroup_id_z 1
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 120
  .amdhsa_accum_offset 120
  .amdhsa_next_free_sgpr 78
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx950
amdhsa.kernels:
  - .name: paged_attention_bf16_fp8
    .symbol: paged_attention_bf16_fp8.kd
    .kernarg_segment_size: 160
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16384
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 84
    .vgpr_count: 120
    .agpr_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: q, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: k_cache, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: v_cache, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: out, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: lse, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: starts, .offset: 40, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: lengths, .offset: 48, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: table, .offset: 56, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: k_scale, .offset: 64, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: v_scale, .offset: 72, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: q_token, .offset: 80, .size: 4, .value_kind: by_value}
      - {.name: q_head, .offset: 84, .size: 4, .value_kind: by_value}
      - {.name: k_page, .offset: 88, .size: 4, .value_kind: by_value}
      - {.name: k_token, .offset: 92, .size: 4, .value_kind: by_value}
      - {.name: k_head, .offset: 96, .size: 4, .value_kind: by_value}
      - {.name: v_page, .offset: 100, .size: 4, .value_kind: by_value}
      - {.name: v_token, .offset: 104, .size: 4, .value_kind: by_value}
      - {.name: v_head, .offset: 108, .size: 4, .value_kind: by_value}
      - {.name: table_row, .offset: 112, .size: 4, .value_kind: by_value}
      - {.name: k_scale_step, .offset: 116, .size: 4, .value_kind: by_value}
      - {.name: v_scale_step, .offset: 120, .size: 4, .value_kind: by_value}
      - {.name: page_shift, .offset: 124, .size: 4, .value_kind: by_value}
      - {.name: tokens, .offset: 128, .size: 4, .value_kind: by_value}
      - {.name: heads, .offset: 132, .size: 4, .value_kind: by_value}
      - {.name: group_size, .offset: 136, .size: 4, .value_kind: by_value}
      - {.name: scale, .offset: 140, .size: 4, .value_kind: by_value}
      - {.name: causal, .offset: 144, .size: 4, .value_kind: by_value}
      - {.name: q_keep, .offset: 148, .size: 4, .value_kind: by_value}
      - {.name: q_sign, .offset: 152, .size: 4, .value_kind: by_value}
...
.end_amdgpu_metadata
