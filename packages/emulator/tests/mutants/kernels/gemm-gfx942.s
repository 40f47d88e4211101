	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_load_dwordx8 s[4:11], s[0:1], 0x8
	s_load_dwordx4 s[12:15], s[0:1], 0x28
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	v_readfirstlane_b32 s11, v0
	v_and_b32_e32 v1, 63, v0
	s_lshl_b32 s8, s16, 5
	v_and_or_b32 v1, s11, 64, v1
	v_lshrrev_b32_e32 v6, 2, v1
	v_lshlrev_b32_e32 v2, 3, v0
	v_and_b32_e32 v24, 24, v2
	v_or_b32_e32 v2, s8, v6
	v_mul_lo_u32 v2, v2, s10
	v_ashrrev_i32_e32 v3, 31, v2
	s_cmp_gt_i32 s10, 0
	v_lshl_add_u64 v[16:17], v[2:3], 1, s[2:3]
	v_mov_b32_e32 v11, 0
	s_cselect_b64 s[0:1], -1, 0
	s_cmp_lt_i32 s10, 1
	v_lshlrev_b32_e32 v10, 1, v24
	s_cbranch_scc1 .LBB0_2
	v_lshl_add_u64 v[2:3], v[16:17], 0, v[10:11]
	global_load_dwordx4 v[2:5], v[2:3], off
	s_branch .LBB0_3
.LBB0_2:
	v_mov_b32_e32 v2, 0
	v_mov_b32_e32 v3, v2
	v_mov_b32_e32 v4, v2
	v_mov_b32_e32 v5, v2
.LBB0_3:
	s_lshl_b32 s2, s17, 5
	v_or_b32_e32 v6, s2, v6
	v_mul_lo_u32 v6, v6, s10
	s_and_b64 s[0:1], s[0:1], exec
	v_ashrrev_i32_e32 v7, 31, v6
	s_cselect_b32 s0, 1, 0
	v_lshl_add_u64 v[18:19], v[6:7], 1, s[4:5]
	s_cmp_lg_u32 s0, 1
	v_mov_b32_e32 v11, 0
	s_cbranch_scc1 .LBB0_5
	v_lshl_add_u64 v[6:7], v[18:19], 0, v[10:11]
	global_load_dwordx4 v[6:9], v[6:7], off
	s_branch .LBB0_6
.LBB0_5:
	v_mov_b32_e32 v6, 0
	v_mov_b32_e32 v7, v6
	v_mov_b32_e32 v8, v6
	v_mov_b32_e32 v9, v6
.LBB0_6:
	v_lshlrev_b32_e32 v1, 4, v1
	v_and_b32_e32 v11, 56, v0
	v_xor_b32_e32 v1, v1, v11
	v_and_b32_e32 v21, 32, v0
	v_add_u32_e32 v25, 0, v1
	v_xor_b32_e32 v1, 8, v1
	s_sub_i32 s0, s10, 32
	v_and_b32_e32 v20, 31, v0
	v_add_u32_e32 v26, 0, v1
	v_mov_b32_e32 v11, 0
	s_cmp_lt_i32 s0, 1
	v_lshlrev_b32_e32 v22, 2, v0
	v_lshrrev_b32_e32 v23, 2, v21
	s_waitcnt vmcnt(0)
	ds_write_b64 v25, v[2:3]
	ds_write_b64 v25, v[6:7] offset:2048
	ds_write2st64_b64 v26, v[4:5], v[8:9] offset1:4
	s_cbranch_scc1 .LBB0_10
	v_lshl_add_u64 v[0:1], v[16:17], 0, v[10:11]
	global_load_dwordx4 v[32:35], v[0:1], off offset:64
	v_lshl_add_u64 v[0:1], v[18:19], 0, v[10:11]
	s_waitcnt lgkmcnt(0)
	s_barrier
	global_load_dwordx4 v[36:39], v[0:1], off offset:64
	v_and_b32_e32 v0, 56, v22
	v_xor_b32_e32 v0, v0, v23
	v_lshl_or_b32 v30, v20, 6, v0
	v_add_u32_e32 v27, 0, v30
	ds_read2st64_b64 v[40:43], v27 offset1:4
	v_xor_b32_e32 v0, 16, v30
	v_add_u32_e32 v28, 0, v0
	v_xor_b32_e32 v29, 32, v30
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], 0
	ds_read2st64_b64 v[40:43], v28 offset1:4
	v_add_u32_e32 v29, 0, v29
	v_xor_b32_e32 v30, 48, v30
	v_add_u32_e32 v30, 0, v30
	s_cmp_lt_u32 s0, 33
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	ds_read2st64_b64 v[40:43], v29 offset1:4
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	ds_read2st64_b64 v[40:43], v30 offset1:4
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b64 v25, v[32:33]
	s_waitcnt vmcnt(0)
	ds_write_b64 v25, v[36:37] offset:2048
	ds_write2st64_b64 v26, v[34:35], v[38:39] offset1:4
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	s_cbranch_scc1 .LBB0_11
	s_mov_b32 s1, 32
.LBB0_9:
	s_add_i32 s1, s1, 32
	v_or_b32_e32 v32, s1, v24
	v_ashrrev_i32_e32 v33, 31, v32
	v_lshlrev_b64 v[36:37], 1, v[32:33]
	v_lshl_add_u64 v[32:33], v[16:17], 0, v[36:37]
	global_load_dwordx4 v[32:35], v[32:33], off
	v_lshl_add_u64 v[36:37], v[18:19], 0, v[36:37]
	s_waitcnt lgkmcnt(0)
	s_barrier
	global_load_dwordx4 v[36:39], v[36:37], off
	ds_read2st64_b64 v[40:43], v27 offset1:4
	s_cmp_lt_i32 s1, s0
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	ds_read2st64_b64 v[40:43], v28 offset1:4
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	ds_read2st64_b64 v[40:43], v29 offset1:4
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	ds_read2st64_b64 v[40:43], v30 offset1:4
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b64 v25, v[32:33]
	s_waitcnt vmcnt(0)
	ds_write_b64 v25, v[36:37] offset:2048
	ds_write2st64_b64 v26, v[34:35], v[38:39] offset1:4
	v_mfma_f32_32x32x8_f16 v[0:15], v[42:43], v[40:41], v[0:15]
	s_cbranch_scc1 .LBB0_9
	s_branch .LBB0_11
.LBB0_10:
	v_mov_b32_e32 v0, 0
	v_mov_b32_e32 v1, v0
	v_mov_b32_e32 v2, v0
	v_mov_b32_e32 v3, v0
	v_mov_b32_e32 v4, v0
	v_mov_b32_e32 v5, v0
	v_mov_b32_e32 v6, v0
	v_mov_b32_e32 v7, v0
	v_mov_b32_e32 v8, v0
	v_mov_b32_e32 v9, v0
	v_mov_b32_e32 v10, v0
	v_mov_b32_e32 v11, v0
	v_mov_b32_e32 v12, v0
	v_mov_b32_e32 v13, v0
	v_mov_b32_e32 v14, v0
	v_mov_b32_e32 v15, v0
.LBB0_11:
	s_lshr_b32 s0, s11, 6
	s_add_i32 s10, s10, 31
	s_cmp_lt_i32 s10, 32
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_scc0 .LBB0_14
	s_cmp_lg_u32 s0, 0
	s_cbranch_scc0 .LBB0_15
.LBB0_13:
	s_endpgm
.LBB0_14:
	v_and_b32_e32 v16, 56, v22
	v_xor_b32_e32 v16, v16, v23
	v_lshl_or_b32 v22, v20, 6, v16
	v_add_u32_e32 v16, 0, v22
	ds_read2st64_b64 v[16:19], v16 offset1:4
	v_xad_u32 v23, v22, 16, 0
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[18:19], v[16:17], v[0:15]
	ds_read2st64_b64 v[16:19], v23 offset1:4
	v_xad_u32 v23, v22, 32, 0
	v_xad_u32 v22, v22, 48, 0
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[18:19], v[16:17], v[0:15]
	ds_read2st64_b64 v[16:19], v23 offset1:4
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[18:19], v[16:17], v[0:15]
	ds_read2st64_b64 v[16:19], v22 offset1:4
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x8_f16 v[0:15], v[18:19], v[16:17], v[0:15]
	s_cmp_lg_u32 s0, 0
	s_cbranch_scc1 .LBB0_13
.LBB0_15:
	v_or_b32_e32 v17, s8, v20
	v_lshrrev_b32_e32 v16, 3, v21
	v_mul_lo_u32 v18, s9, v17
	v_or_b32_e32 v16, s2, v16
	v_ashrrev_i32_e32 v19, 31, v18
	v_lshl_add_u64 v[18:19], v[18:19], 2, s[6:7]
	v_ashrrev_i32_e32 v17, 31, v16
	v_lshl_add_u64 v[16:17], v[16:17], 2, v[18:19]
	s_nop 0
	global_store_dwordx4 v[16:17], v[0:3], off
	global_store_dwordx4 v[16:17], v[4:7], off offset:32
	global_store_dwordx4 v[16:17], v[8:11], off offset:64
	global_store_dwordx4 v[16:17], v[12:15], off offset:96
	s_endpgm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 0
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 56
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 14
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 44
		.amdhsa_next_free_sgpr 18
		.amdhsa_accum_offset 44
		.amdhsa_reserve_vcc 0
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
	.text
	.text
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .offset:         24
        .size:           4
        .value_kind:     by_value
      - .offset:         28
        .size:           4
        .value_kind:     by_value
      - .offset:         32
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         40
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         48
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 56
    .max_flat_workgroup_size: 128
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     24
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     44
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
