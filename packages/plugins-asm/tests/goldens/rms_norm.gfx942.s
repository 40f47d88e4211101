// rms_norm for gfx942, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.amdhsa_code_object_version 5

// rms_norm of Recipe(x='bf16', weight='bf16', adds=False, gates=False, norm='rms', biased=False, codes='', block='').
// A workgroup is a row of up to 2048 columns.
// Arguments: x p at 0, residual p at 8, weight p at 16, bias p at 24, y p at 32, scales p at 40, sum p at 48, x_stride I at 56, residual_stride I at 60, columns I at 64, inverse_columns f at 68, eps f at 72, weight_offset f at 76
.text
.globl rms_norm_bf16_bf16_w4c1
.p2align 8
.type rms_norm_bf16_bf16_w4c1,@function
rms_norm_bf16_bf16_w4c1:
  .set s_kernarg, 0
  .set s_group, 2
  .set v_thread, 0
  .set s_arguments, 4
  s_load_dwordx16 s[s_arguments:s_arguments+15], s[s_kernarg:s_kernarg+1], 0
  s_load_dwordx4 s[s_arguments+16:s_arguments+19], s[s_kernarg:s_kernarg+1], 64
  s_waitcnt lgkmcnt(0)
  .set s_x, 4
  .set s_residual, 6
  .set s_weight, 8
  .set s_bias, 10
  .set s_y, 12
  .set s_scales, 14
  .set s_sum, 16
  .set s_x_stride, 18
  .set s_residual_stride, 19
  .set s_columns, 20
  .set s_inverse_columns, 21
  .set s_eps, 22
  .set s_weight_offset, 23

  // Buffers of this row, whose lengths are their bounds
  .set s_row_bytes2, 3
  s_mul_i32 s[s_row_bytes2], s[s_columns], 2
  .set s_x_row, 24
  s_mul_i32 s[s_x_row], s[s_group], s[s_x_stride]
  s_mul_hi_u32 s[s_x_row+1], s[s_group], s[s_x_stride]
  s_add_u32 s[s_x_row], s[s_x_row], s[s_x]
  s_addc_u32 s[s_x_row+1], s[s_x_row+1], s[s_x+1]
  s_mov_b32 s[s_x_row+2], s[s_row_bytes2]
  s_and_b32 s[s_x_row+1], s[s_x_row+1], 0xffff
  s_mov_b32 s[s_x_row+3], 0x27000
  .set s_y_row, 28
  s_mul_i32 s[s_y_row], s[s_group], s[s_row_bytes2]
  s_mul_hi_u32 s[s_y_row+1], s[s_group], s[s_row_bytes2]
  s_add_u32 s[s_y_row], s[s_y_row], s[s_y]
  s_addc_u32 s[s_y_row+1], s[s_y_row+1], s[s_y+1]
  s_mov_b32 s[s_y_row+2], s[s_row_bytes2]
  s_and_b32 s[s_y_row+1], s[s_y_row+1], 0xffff
  s_mov_b32 s[s_y_row+3], 0x27000

  // Load what is read
  .set v_at16, 1
  v_lshlrev_b32 v[v_at16], 4, v[v_thread]
  .set v_x_packed0, 2
  buffer_load_dwordx4 v[v_x_packed0:v_x_packed0+3], v[v_at16], s[s_x_row:s_x_row+3], 0 offen
  .set s_gains, 32
  s_mov_b32 s[s_gains], s[s_weight]
  s_mov_b32 s[s_gains+1], s[s_weight+1]
  s_mov_b32 s[s_gains+2], s[s_row_bytes2]
  s_and_b32 s[s_gains+1], s[s_gains+1], 0xffff
  s_mov_b32 s[s_gains+3], 0x27000
  .set v_gain0, 6
  buffer_load_dwordx4 v[v_gain0:v_gain0+3], v[v_at16], s[s_gains:s_gains+3], 0 offen

  // In float32
  .set v_value0, 10
  s_waitcnt vmcnt(1)
  v_lshlrev_b32 v[v_value0], 16, v[v_x_packed0]
  v_and_b32 v[v_value0+1], 0xffff0000, v[v_x_packed0]
  v_lshlrev_b32 v[v_value0+2], 16, v[v_x_packed0+1]
  v_and_b32 v[v_value0+3], 0xffff0000, v[v_x_packed0+1]
  v_lshlrev_b32 v[v_value0+4], 16, v[v_x_packed0+2]
  v_and_b32 v[v_value0+5], 0xffff0000, v[v_x_packed0+2]
  v_lshlrev_b32 v[v_value0+6], 16, v[v_x_packed0+3]
  v_and_b32 v[v_value0+7], 0xffff0000, v[v_x_packed0+3]

  // The sum of squares
  .set v_inverse_root, 18
  .set v_squares, 20
  v_mov_b32 v[v_squares], 0
  v_mov_b32 v[v_squares+1], 0
  v_pk_fma_f32 v[v_squares:v_squares+1], v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_squares:v_squares+1]
  v_pk_fma_f32 v[v_squares:v_squares+1], v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_squares:v_squares+1]
  v_pk_fma_f32 v[v_squares:v_squares+1], v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_squares:v_squares+1]
  v_pk_fma_f32 v[v_squares:v_squares+1], v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_squares:v_squares+1]
  v_add_f32 v[v_squares], v[v_squares], v[v_squares+1]
  .set s_of_wave, 36
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] row_half_mirror row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] row_mirror row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] row_bcast:15 row_mask:0xa bank_mask:0xf
  s_nop 1
  v_add_f32_dpp v[v_squares], v[v_squares], v[v_squares] row_bcast:31 row_mask:0xc bank_mask:0xf
  s_nop 0
  v_readlane_b32 s[s_of_wave], v[v_squares], 63
  s_nop 1
  v_mov_b32 v[v_inverse_root], s[s_of_wave]
  .set v_slot, 19
  .set v_parts, 22
  v_lshrrev_b32 v[v_slot], 6, v[v_thread]
  v_lshlrev_b32 v[v_slot], 2, v[v_slot]
  ds_write_b32 v[v_slot], v[v_inverse_root] offset:0           // each wave's part
  v_mov_b32 v[v_slot], 0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[v_parts:v_parts+3], v[v_slot]
  s_waitcnt lgkmcnt(0)
  v_add_f32 v[v_parts], v[v_parts], v[v_parts+1]
  v_add_f32 v[v_parts+2], v[v_parts+2], v[v_parts+3]
  v_add_f32 v[v_inverse_root], v[v_parts], v[v_parts+2]

  // The reciprocal root of the mean
  .set v_factor, 19
  .set v_one, 22
  v_mul_f32 v[v_inverse_root], s[s_inverse_columns], v[v_inverse_root]
  v_add_f32 v[v_inverse_root], s[s_eps], v[v_inverse_root]
  v_mov_b32 v[v_factor], 0x5f800000
  v_mov_b32 v[v_one], 1.0
  v_cmp_gt_f32 vcc, 0xd800000, v[v_inverse_root]
  s_nop 1
  v_cndmask_b32 v[v_factor], v[v_one], v[v_factor], vcc
  v_mul_f32 v[v_inverse_root], v[v_inverse_root], v[v_factor]
  v_rsq_f32 v[v_inverse_root], v[v_inverse_root]
  v_mov_b32 v[v_factor], 0x4f800000
  v_cndmask_b32 v[v_factor], v[v_one], v[v_factor], vcc
  v_mul_f32 v[v_inverse_root], v[v_inverse_root], v[v_factor]

  // Times the weight
  .set v_offset, 19
  v_mov_b32 v[v_offset], s[s_weight_offset]
  v_mul_f32 v[v_value0], v[v_value0], v[v_inverse_root]
  v_mul_f32 v[v_value0+1], v[v_value0+1], v[v_inverse_root]
  v_mul_f32 v[v_value0+2], v[v_value0+2], v[v_inverse_root]
  v_mul_f32 v[v_value0+3], v[v_value0+3], v[v_inverse_root]
  v_mul_f32 v[v_value0+4], v[v_value0+4], v[v_inverse_root]
  v_mul_f32 v[v_value0+5], v[v_value0+5], v[v_inverse_root]
  v_mul_f32 v[v_value0+6], v[v_value0+6], v[v_inverse_root]
  v_mul_f32 v[v_value0+7], v[v_value0+7], v[v_inverse_root]
  .set v_gain_values, 22
  s_waitcnt vmcnt(0)
  v_lshlrev_b32 v[v_gain_values], 16, v[v_gain0]
  v_and_b32 v[v_gain_values+1], 0xffff0000, v[v_gain0]
  v_lshlrev_b32 v[v_gain_values+2], 16, v[v_gain0+1]
  v_and_b32 v[v_gain_values+3], 0xffff0000, v[v_gain0+1]
  v_lshlrev_b32 v[v_gain_values+4], 16, v[v_gain0+2]
  v_and_b32 v[v_gain_values+5], 0xffff0000, v[v_gain0+2]
  v_lshlrev_b32 v[v_gain_values+6], 16, v[v_gain0+3]
  v_and_b32 v[v_gain_values+7], 0xffff0000, v[v_gain0+3]
  v_add_f32 v[v_gain_values], v[v_gain_values], v[v_offset]
  v_add_f32 v[v_gain_values+1], v[v_gain_values+1], v[v_offset]
  v_add_f32 v[v_gain_values+2], v[v_gain_values+2], v[v_offset]
  v_add_f32 v[v_gain_values+3], v[v_gain_values+3], v[v_offset]
  v_add_f32 v[v_gain_values+4], v[v_gain_values+4], v[v_offset]
  v_add_f32 v[v_gain_values+5], v[v_gain_values+5], v[v_offset]
  v_add_f32 v[v_gain_values+6], v[v_gain_values+6], v[v_offset]
  v_add_f32 v[v_gain_values+7], v[v_gain_values+7], v[v_offset]
  v_pk_mul_f32 v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_gain_values:v_gain_values+1]
  v_pk_mul_f32 v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_gain_values+2:v_gain_values+3]
  v_pk_mul_f32 v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_gain_values+4:v_gain_values+5]
  v_pk_mul_f32 v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_gain_values+6:v_gain_values+7]

  // Round and store
  .set s_half_unit, 36
  s_mov_b32 s[s_half_unit], 0x7fff
  .set v_quiet_nan, 22
  v_mov_b32 v[v_quiet_nan], 0x7fff0000
  .set v_odd, 24
  .set s_is_nan, 38
  v_cmp_u_f32 vcc, v[v_value0], v[v_value0]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_value0+1], v[v_value0+1]
  v_bfe_u32 v[v_odd], v[v_value0], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_value0+1], 16, 1
  v_add3_u32 v[v_odd], v[v_value0], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_value0+1], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_value0], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_value0+1], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  .set s_high_halves, 37
  s_mov_b32 s[s_high_halves], 0x7060302
  v_perm_b32 v[v_x_packed0], v[v_value0+1], v[v_value0], s[s_high_halves]
  .set v_odd, 24
  .set s_is_nan, 38
  v_cmp_u_f32 vcc, v[v_value0+2], v[v_value0+2]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_value0+3], v[v_value0+3]
  v_bfe_u32 v[v_odd], v[v_value0+2], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_value0+3], 16, 1
  v_add3_u32 v[v_odd], v[v_value0+2], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_value0+3], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_value0+2], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_value0+3], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_x_packed0+1], v[v_value0+3], v[v_value0+2], s[s_high_halves]
  .set v_odd, 24
  .set s_is_nan, 38
  v_cmp_u_f32 vcc, v[v_value0+4], v[v_value0+4]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_value0+5], v[v_value0+5]
  v_bfe_u32 v[v_odd], v[v_value0+4], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_value0+5], 16, 1
  v_add3_u32 v[v_odd], v[v_value0+4], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_value0+5], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_value0+4], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_value0+5], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_x_packed0+2], v[v_value0+5], v[v_value0+4], s[s_high_halves]
  .set v_odd, 24
  .set s_is_nan, 38
  v_cmp_u_f32 vcc, v[v_value0+6], v[v_value0+6]
  v_cmp_u_f32 s[s_is_nan:s_is_nan+1], v[v_value0+7], v[v_value0+7]
  v_bfe_u32 v[v_odd], v[v_value0+6], 16, 1
  v_bfe_u32 v[v_odd+1], v[v_value0+7], 16, 1
  v_add3_u32 v[v_odd], v[v_value0+6], v[v_odd], s[s_half_unit]
  v_add3_u32 v[v_odd+1], v[v_value0+7], v[v_odd+1], s[s_half_unit]
  v_cndmask_b32 v[v_value0+6], v[v_odd], v[v_quiet_nan], vcc
  v_cndmask_b32_e64 v[v_value0+7], v[v_odd+1], v[v_quiet_nan], s[s_is_nan:s_is_nan+1]
  v_perm_b32 v[v_x_packed0+3], v[v_value0+7], v[v_value0+6], s[s_high_halves]
  buffer_store_dwordx4 v[v_x_packed0:v_x_packed0+3], v[v_at16], s[s_y_row:s_y_row+3], 0 offen
  s_endpgm
.rms_norm_bf16_bf16_w4c1_end:
.size rms_norm_bf16_bf16_w4c1, .rms_norm_bf16_bf16_w4c1_end - rms_norm_bf16_bf16_w4c1

.rodata
.p2align 6
.amdhsa_kernel rms_norm_bf16_bf16_w4c1
  .amdhsa_group_segment_fixed_size 16
  .amdhsa_kernarg_size 80
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 0
  .amdhsa_system_sgpr_workgroup_id_z 0
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 32
  .amdhsa_accum_offset 32
  .amdhsa_next_free_sgpr 40
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: rms_norm_bf16_bf16_w4c1
    .symbol: rms_norm_bf16_bf16_w4c1.kd
    .kernarg_segment_size: 80
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 46
    .vgpr_count: 32
    .agpr_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: x, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: residual, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: weight, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: bias, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: y, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: scales, .offset: 40, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: sum, .offset: 48, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: x_stride, .offset: 56, .size: 4, .value_kind: by_value}
      - {.name: residual_stride, .offset: 60, .size: 4, .value_kind: by_value}
      - {.name: columns, .offset: 64, .size: 4, .value_kind: by_value}
      - {.name: inverse_columns, .offset: 68, .size: 4, .value_kind: by_value}
      - {.name: eps, .offset: 72, .size: 4, .value_kind: by_value}
      - {.name: weight_offset, .offset: 76, .size: 4, .value_kind: by_value}
...
.end_amdgpu_metadata
