// silu_and_mul_quantize for gfx942, written by opmux_asm golden. Read it from the top: .set gives registers their names.
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.amdhsa_code_object_version 5

// silu_and_mul_quantize of Recipe(x='bf16', weight='', adds=False, gates=True, norm='', biased=False, codes='fp8', block='block').
// A workgroup is a row of up to 512 columns.
// Arguments: x p at 0, residual p at 8, weight p at 16, bias p at 24, y p at 32, scales p at 40, sum p at 48, x_stride I at 56, residual_stride I at 60, columns I at 64, inverse_columns f at 68, eps f at 72, weight_offset f at 76
.text
.globl silu_and_mul_quantize_bf16_fp8_block_w1c1
.p2align 8
.type silu_and_mul_quantize_bf16_fp8_block_w1c1,@function
silu_and_mul_quantize_bf16_fp8_block_w1c1:
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
  .set s_row_bytes1, 28
  s_mul_i32 s[s_row_bytes1], s[s_columns], 1
  .set s_y_row, 32
  s_mul_i32 s[s_y_row], s[s_group], s[s_row_bytes1]
  s_mul_hi_u32 s[s_y_row+1], s[s_group], s[s_row_bytes1]
  s_add_u32 s[s_y_row], s[s_y_row], s[s_y]
  s_addc_u32 s[s_y_row+1], s[s_y_row+1], s[s_y+1]
  s_mov_b32 s[s_y_row+2], s[s_row_bytes1]
  s_and_b32 s[s_y_row+1], s[s_y_row+1], 0xffff
  s_mov_b32 s[s_y_row+3], 0x27000
  .set s_scale_bytes, 29
  s_add_u32 s[s_scale_bytes], s[s_columns], 0x7f
  s_lshr_b32 s[s_scale_bytes], s[s_scale_bytes], 7
  s_lshl_b32 s[s_scale_bytes], s[s_scale_bytes], 2
  .set s_scales_row, 36
  s_mul_i32 s[s_scales_row], s[s_group], s[s_scale_bytes]
  s_mul_hi_u32 s[s_scales_row+1], s[s_group], s[s_scale_bytes]
  s_add_u32 s[s_scales_row], s[s_scales_row], s[s_scales]
  s_addc_u32 s[s_scales_row+1], s[s_scales_row+1], s[s_scales+1]
  s_mov_b32 s[s_scales_row+2], s[s_scale_bytes]
  s_and_b32 s[s_scales_row+1], s[s_scales_row+1], 0xffff
  s_mov_b32 s[s_scales_row+3], 0x27000

  // Load what is read
  .set v_at16, 1
  v_lshlrev_b32 v[v_at16], 4, v[v_thread]
  .set v_x_packed0, 2
  buffer_load_dwordx4 v[v_x_packed0:v_x_packed0+3], v[v_at16], s[s_x_row:s_x_row+3], 0 offen
  s_add_u32 s[s_x_row], s[s_x_row], s[s_row_bytes2]
  s_addc_u32 s[s_x_row+1], s[s_x_row+1], 0
  .set v_up_packed0, 6
  buffer_load_dwordx4 v[v_up_packed0:v_up_packed0+3], v[v_at16], s[s_x_row:s_x_row+3], 0 offen

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
  .set v_other, 18
  s_waitcnt vmcnt(0)
  v_lshlrev_b32 v[v_other], 16, v[v_up_packed0]
  v_and_b32 v[v_other+1], 0xffff0000, v[v_up_packed0]
  v_lshlrev_b32 v[v_other+2], 16, v[v_up_packed0+1]
  v_and_b32 v[v_other+3], 0xffff0000, v[v_up_packed0+1]
  v_lshlrev_b32 v[v_other+4], 16, v[v_up_packed0+2]
  v_and_b32 v[v_other+5], 0xffff0000, v[v_up_packed0+2]
  v_lshlrev_b32 v[v_other+6], 16, v[v_up_packed0+3]
  v_and_b32 v[v_other+7], 0xffff0000, v[v_up_packed0+3]
  .set v_sigmoid, 26
  v_mul_f32 v[v_sigmoid], 0xbfb8aa3b, v[v_value0]
  v_mul_f32 v[v_sigmoid+1], 0xbfb8aa3b, v[v_value0+1]
  v_mul_f32 v[v_sigmoid+2], 0xbfb8aa3b, v[v_value0+2]
  v_mul_f32 v[v_sigmoid+3], 0xbfb8aa3b, v[v_value0+3]
  v_mul_f32 v[v_sigmoid+4], 0xbfb8aa3b, v[v_value0+4]
  v_mul_f32 v[v_sigmoid+5], 0xbfb8aa3b, v[v_value0+5]
  v_mul_f32 v[v_sigmoid+6], 0xbfb8aa3b, v[v_value0+6]
  v_mul_f32 v[v_sigmoid+7], 0xbfb8aa3b, v[v_value0+7]
  v_exp_f32 v[v_sigmoid], v[v_sigmoid]
  v_exp_f32 v[v_sigmoid+1], v[v_sigmoid+1]
  v_exp_f32 v[v_sigmoid+2], v[v_sigmoid+2]
  v_exp_f32 v[v_sigmoid+3], v[v_sigmoid+3]
  v_exp_f32 v[v_sigmoid+4], v[v_sigmoid+4]
  v_exp_f32 v[v_sigmoid+5], v[v_sigmoid+5]
  v_exp_f32 v[v_sigmoid+6], v[v_sigmoid+6]
  v_exp_f32 v[v_sigmoid+7], v[v_sigmoid+7]
  v_add_f32 v[v_sigmoid], 1.0, v[v_sigmoid]
  v_add_f32 v[v_sigmoid+1], 1.0, v[v_sigmoid+1]
  v_add_f32 v[v_sigmoid+2], 1.0, v[v_sigmoid+2]
  v_add_f32 v[v_sigmoid+3], 1.0, v[v_sigmoid+3]
  v_add_f32 v[v_sigmoid+4], 1.0, v[v_sigmoid+4]
  v_add_f32 v[v_sigmoid+5], 1.0, v[v_sigmoid+5]
  v_add_f32 v[v_sigmoid+6], 1.0, v[v_sigmoid+6]
  v_add_f32 v[v_sigmoid+7], 1.0, v[v_sigmoid+7]
  v_rcp_f32 v[v_sigmoid], v[v_sigmoid]
  v_rcp_f32 v[v_sigmoid+1], v[v_sigmoid+1]
  v_rcp_f32 v[v_sigmoid+2], v[v_sigmoid+2]
  v_rcp_f32 v[v_sigmoid+3], v[v_sigmoid+3]
  v_rcp_f32 v[v_sigmoid+4], v[v_sigmoid+4]
  v_rcp_f32 v[v_sigmoid+5], v[v_sigmoid+5]
  v_rcp_f32 v[v_sigmoid+6], v[v_sigmoid+6]
  v_rcp_f32 v[v_sigmoid+7], v[v_sigmoid+7]
  v_pk_mul_f32 v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_sigmoid:v_sigmoid+1]
  v_pk_mul_f32 v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_sigmoid+2:v_sigmoid+3]
  v_pk_mul_f32 v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_sigmoid+4:v_sigmoid+5]
  v_pk_mul_f32 v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_sigmoid+6:v_sigmoid+7]
  v_pk_mul_f32 v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_other:v_other+1]
  v_pk_mul_f32 v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_other+2:v_other+3]
  v_pk_mul_f32 v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_other+4:v_other+5]
  v_pk_mul_f32 v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_other+6:v_other+7]

  // Quantise and store
  .set v_scale, 18
  .set v_raised, 20
  .set v_inverse, 22
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1              // conversions saturate
  .set v_scale_at, 19
  v_lshrrev_b32 v[v_scale_at], 4, v[v_thread]
  v_lshlrev_b32 v[v_scale_at], 2, v[v_scale_at]
  v_mov_b32 v[v_scale], 0
  v_max3_f32 v[v_scale], |v[v_value0]|, |v[v_value0+1]|, v[v_scale]
  v_max3_f32 v[v_scale], |v[v_value0+2]|, |v[v_value0+3]|, v[v_scale]
  v_max3_f32 v[v_scale], |v[v_value0+4]|, |v[v_value0+5]|, v[v_scale]
  v_max3_f32 v[v_scale], |v[v_value0+6]|, |v[v_value0+7]|, v[v_scale]
  s_nop 1
  v_max_f32_dpp v[v_scale], v[v_scale], v[v_scale] quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_max_f32_dpp v[v_scale], v[v_scale], v[v_scale] quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_max_f32_dpp v[v_scale], v[v_scale], v[v_scale] row_half_mirror row_mask:0xf bank_mask:0xf
  s_nop 1
  v_max_f32_dpp v[v_scale], v[v_scale], v[v_scale] row_mirror row_mask:0xf bank_mask:0xf
  .set v_lift, 24
  v_mov_b32 v[v_lift], 0x4b800000
  .set s_reciprocal, 30
  s_mov_b32 s[s_reciprocal], 0x3b888889
  v_mul_f32 v[v_scale], s[s_reciprocal], v[v_scale]
  v_cmp_lt_f32 vcc, 0, v[v_scale]
  s_nop 1
  v_cndmask_b32 v[v_scale], 1.0, v[v_scale], vcc
  v_cmp_gt_f32 vcc, 0x800000, v[v_scale]
  s_nop 1
  v_cndmask_b32 v[v_raised], 1.0, v[v_lift], vcc
  v_mul_f32 v[v_inverse], v[v_scale], v[v_raised]
  v_rcp_f32 v[v_inverse], v[v_inverse]
  s_mov_b32 exec_lo, 0x10001
  s_mov_b32 exec_hi, 0x10001
  buffer_store_dword v[v_scale], v[v_scale_at], s[s_scales_row:s_scales_row+3], 0 offen
  s_mov_b64 exec, -1
  v_pk_mul_f32 v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_raised:v_raised+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_raised:v_raised+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_raised:v_raised+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_raised:v_raised+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0:v_value0+1], v[v_value0:v_value0+1], v[v_inverse:v_inverse+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+2:v_value0+3], v[v_value0+2:v_value0+3], v[v_inverse:v_inverse+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+4:v_value0+5], v[v_value0+4:v_value0+5], v[v_inverse:v_inverse+1] op_sel_hi:[1,0]
  v_pk_mul_f32 v[v_value0+6:v_value0+7], v[v_value0+6:v_value0+7], v[v_inverse:v_inverse+1] op_sel_hi:[1,0]
  .set v_codes0, 26
  v_cvt_pk_fp8_f32 v[v_codes0], v[v_value0], v[v_value0+1]
  v_cvt_pk_fp8_f32 v[v_codes0], v[v_value0+2], v[v_value0+3] op_sel:[0,0,1]
  v_cvt_pk_fp8_f32 v[v_codes0+1], v[v_value0+4], v[v_value0+5]
  v_cvt_pk_fp8_f32 v[v_codes0+1], v[v_value0+6], v[v_value0+7] op_sel:[0,0,1]
  .set v_at8, 25
  v_lshlrev_b32 v[v_at8], 3, v[v_thread]
  buffer_store_dwordx2 v[v_codes0:v_codes0+1], v[v_at8], s[s_y_row:s_y_row+3], 0 offen
  s_endpgm
.silu_and_mul_quantize_bf16_fp8_block_w1c1_end:
.size silu_and_mul_quantize_bf16_fp8_block_w1c1, .silu_and_mul_quantize_bf16_fp8_block_w1c1_end - silu_and_mul_quantize_bf16_fp8_block_w1c1

.rodata
.p2align 6
.amdhsa_kernel silu_and_mul_quantize_bf16_fp8_block_w1c1
  .amdhsa_group_segment_fixed_size 0
  .amdhsa_kernarg_size 80
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 0
  .amdhsa_system_sgpr_workgroup_id_z 0
  .amdhsa_system_vgpr_workitem_id 0
  .amdhsa_ieee_mode 0
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_next_free_vgpr 36
  .amdhsa_accum_offset 36
  .amdhsa_next_free_sgpr 40
.end_amdhsa_kernel

.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: silu_and_mul_quantize_bf16_fp8_block_w1c1
    .symbol: silu_and_mul_quantize_bf16_fp8_block_w1c1.kd
    .kernarg_segment_size: 80
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 46
    .vgpr_count: 36
    .agpr_count: 0
    .max_flat_workgroup_size: 64
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
