	.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
	s_load_dwordx8 s[8:15], s[4:5], 0x0
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	v_and_b32_e32 v5, 0x3ff, v0
	s_load_dword s6, s[4:5], 0x20
	v_readfirstlane_b32 s0, v5
	s_bfe_u32 s5, s0, 0x10006
	v_and_b32_e32 v1, 63, v0
	v_lshl_or_b32 v7, s5, 6, v1
	s_lshl_b32 s4, s16, 5
	v_lshrrev_b32_e32 v6, 2, v7
	v_lshlrev_b32_e32 v2, 3, v5
	v_lshlrev_b32_e32 v7, 3, v7
	v_lshrrev_b32_e32 v0, 1, v0
	v_and_b32_e32 v4, 24, v2
	v_or_b32_e32 v2, s4, v6
	v_bitop3_b32 v0, v7, v0, 24 bitop3:0x78
	s_waitcnt lgkmcnt(0)
	v_mul_lo_u32 v2, v2, s6
	v_sub_u32_e32 v0, v0, v7
	v_ashrrev_i32_e32 v3, 31, v2
	v_ashrrev_i32_e32 v0, 3, v0
	v_lshl_add_u64 v[16:17], v[2:3], 1, s[8:9]
	v_mov_b32_e32 v3, 0
	v_lshlrev_b32_e32 v2, 1, v4
	v_add_u32_e32 v25, v0, v1
	v_lshl_add_u64 v[8:9], v[16:17], 0, v[2:3]
	v_lshlrev_b32_e32 v26, 2, v25
	ds_bpermute_b32 v0, v26, v8
	ds_bpermute_b32 v1, v26, v9
	v_cmp_gt_i32_e64 s[2:3], s6, 0
	s_cmp_gt_i32 s6, 0
	s_cselect_b64 s[0:1], -1, 0
	v_lshrrev_b64 v[8:9], v25, s[2:3]
	v_and_b32_e32 v7, 1, v8
	s_lshl_b32 s7, s5, 10
	v_cmp_eq_u32_e32 vcc, 1, v7
	s_and_saveexec_b64 s[2:3], vcc
	s_cbranch_execz .LBB0_2
	s_mov_b32 m0, s7
	s_waitcnt lgkmcnt(0)
	global_load_lds_dwordx4 v[0:1], off
.LBB0_2:
	s_or_b64 exec, exec, s[2:3]
	s_lshl_b32 s2, s17, 5
	s_waitcnt lgkmcnt(1)
	v_or_b32_e32 v0, s2, v6
	v_mul_lo_u32 v0, v0, s6
	s_waitcnt lgkmcnt(0)
	v_ashrrev_i32_e32 v1, 31, v0
	v_lshl_add_u64 v[18:19], v[0:1], 1, s[10:11]
	v_lshl_add_u64 v[0:1], v[18:19], 0, v[2:3]
	s_and_b64 s[0:1], s[0:1], exec
	ds_bpermute_b32 v0, v26, v0
	ds_bpermute_b32 v1, v26, v1
	s_cselect_b32 s0, 1, 0
	v_cmp_ne_u32_e64 s[0:1], s0, 0
	s_mov_b32 s3, 0
	s_nop 0
	v_lshrrev_b64 v[2:3], v25, s[0:1]
	v_and_b32_e32 v2, 1, v2
	v_cmp_eq_u32_e32 vcc, 1, v2
	s_and_saveexec_b64 s[0:1], vcc
	s_cbranch_execz .LBB0_4
	s_add_i32 m0, s7, 0x1000
	s_waitcnt lgkmcnt(0)
	global_load_lds_dwordx4 v[0:1], off
.LBB0_4:
	s_or_b64 exec, exec, s[0:1]
	v_and_b32_e32 v20, 31, v5
	v_and_b32_e32 v21, 32, v5
	s_sub_i32 s1, s6, 32
	s_cmp_lt_i32 s1, 1
	v_lshlrev_b32_e32 v22, 6, v20
	v_lshlrev_b32_e32 v23, 2, v5
	v_lshrrev_b32_e32 v24, 1, v21
	s_cbranch_scc1 .LBB0_7
	s_waitcnt lgkmcnt(1)
	v_and_b32_e32 v0, 48, v23
	s_waitcnt lgkmcnt(0)
	v_bitop3_b32 v1, v23, v24, 48 bitop3:0x6c
	v_bitop3_b32 v27, v0, v22, v24 bitop3:0xde
	v_mov_b32_e32 v0, 0
	v_bitop3_b32 v28, v1, 32, v22 bitop3:0x36
	s_movk_i32 s0, 0x1000
	v_or_b32_e32 v29, 32, v4
	v_bfrev_b32_e32 v30, -2
	s_mov_b32 s8, 0
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
	s_mov_b32 s9, 0
.LBB0_6:
	s_mov_b32 s10, s3
	s_add_i32 s3, s8, 1
	v_add_u32_e32 v32, s9, v29
	s_cmp_lt_i32 s3, 2
	v_ashrrev_i32_e32 v33, 31, v32
	v_lshrrev_b64 v[34:35], v25, exec
	s_cselect_b32 s8, s3, 0
	v_lshlrev_b64 v[32:33], 1, v[32:33]
	v_and_b32_e32 v31, 1, v34
	v_lshl_add_u64 v[34:35], v[16:17], 0, v[32:33]
	s_lshl_b32 s3, s8, 11
	v_lshl_add_u64 v[32:33], v[18:19], 0, v[32:33]
	s_add_i32 s11, s3, s7
	ds_bpermute_b32 v34, v26, v34
	ds_bpermute_b32 v35, v26, v35
	ds_bpermute_b32 v32, v26, v32
	ds_bpermute_b32 v33, v26, v33
	v_mov_b32_e32 v36, s11
	s_addk_i32 s11, 0x1000
	v_cmp_eq_u32_e32 vcc, 1, v31
	s_waitcnt vmcnt(0) lgkmcnt(0)
	s_barrier
	v_cndmask_b32_e32 v31, v30, v36, vcc
	v_mov_b32_e32 v36, s11
	v_readfirstlane_b32 s11, v31
	v_cndmask_b32_e32 v31, v30, v36, vcc
	s_mov_b32 m0, s11
	v_readfirstlane_b32 s14, v31
	global_load_lds_dwordx4 v[34:35], off
	s_mov_b32 m0, s14
	v_add_u32_e32 v31, s10, v27
	global_load_lds_dwordx4 v[32:33], off
	v_add_u32_e32 v32, s10, v28
	v_add_u32_e32 v33, s0, v27
	ds_read_b128 v[34:37], v31
	ds_read_b128 v[38:41], v32
	ds_read_b128 v[42:45], v33
	v_add_u32_e32 v31, s0, v28
	ds_read_b128 v[46:49], v31
	s_waitcnt lgkmcnt(1)
	v_mfma_f32_32x32x16_f16 v[0:15], v[42:45], v[34:37], v[0:15]
	s_add_i32 s9, s9, 32
	s_add_i32 s0, s3, 0x1000
	s_cmp_lt_i32 s9, s1
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_f16 v[0:15], v[46:49], v[38:41], v[0:15]
	s_cbranch_scc1 .LBB0_6
	s_branch .LBB0_8
.LBB0_7:
	v_mov_b32_e32 v15, 0
	s_movk_i32 s0, 0x1000
	v_mov_b32_e32 v14, v15
	v_mov_b32_e32 v13, v15
	v_mov_b32_e32 v12, v15
	v_mov_b32_e32 v11, v15
	v_mov_b32_e32 v10, v15
	v_mov_b32_e32 v9, v15
	v_mov_b32_e32 v8, v15
	v_mov_b32_e32 v7, v15
	v_mov_b32_e32 v6, v15
	v_mov_b32_e32 v5, v15
	v_mov_b32_e32 v4, v15
	v_mov_b32_e32 v3, v15
	v_mov_b32_e32 v2, v15
	s_waitcnt lgkmcnt(0)
	v_mov_b32_e32 v1, v15
	v_mov_b32_e32 v0, v15
.LBB0_8:
	s_add_i32 s6, s6, 31
	s_cmp_lt_i32 s6, 32
	s_waitcnt vmcnt(0)
	s_barrier
	s_cbranch_scc0 .LBB0_11
	s_cmp_lg_u32 s5, 0
	s_cbranch_scc0 .LBB0_12
.LBB0_10:
	s_endpgm
.LBB0_11:
	v_and_b32_e32 v16, 48, v23
	v_bitop3_b32 v16, v16, v22, v24 bitop3:0xde
	v_add_u32_e32 v17, s0, v16
	ds_read_b128 v[26:29], v17
	v_add_u32_e32 v16, s3, v16
	ds_read_b128 v[30:33], v16
	v_bitop3_b32 v16, v23, v24, 48 bitop3:0x6c
	v_bitop3_b32 v16, v16, 32, v22 bitop3:0x36
	v_add_u32_e32 v17, s0, v16
	ds_read_b128 v[22:25], v17
	v_add_u32_e32 v16, s3, v16
	ds_read_b128 v[16:19], v16
	s_waitcnt lgkmcnt(2)
	v_mfma_f32_32x32x16_f16 v[0:15], v[26:29], v[30:33], v[0:15]
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_32x32x16_f16 v[0:15], v[22:25], v[16:19], v[0:15]
	s_cmp_lg_u32 s5, 0
	s_cbranch_scc1 .LBB0_10
.LBB0_12:
	v_or_b32_e32 v17, s4, v20
	v_lshrrev_b32_e32 v16, 3, v21
	v_mul_lo_u32 v18, s15, v17
	v_or_b32_e32 v16, s2, v16
	v_ashrrev_i32_e32 v19, 31, v18
	v_lshl_add_u64 v[18:19], v[18:19], 2, s[12:13]
	v_ashrrev_i32_e32 v17, 31, v16
	v_lshl_add_u64 v[16:17], v[16:17], 2, v[18:19]
	s_nop 1
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
		.amdhsa_kernarg_size 312
		.amdhsa_user_sgpr_count 16
		.amdhsa_user_sgpr_dispatch_ptr 1
		.amdhsa_user_sgpr_queue_ptr 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 1
		.amdhsa_user_sgpr_kernarg_preload_length 8
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 1
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 2
		.amdhsa_next_free_vgpr 50
		.amdhsa_next_free_sgpr 18
		.amdhsa_accum_offset 52
		.amdhsa_reserve_vcc 1
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
      - .offset:         56
        .size:           4
        .value_kind:     hidden_block_count_x
      - .offset:         60
        .size:           4
        .value_kind:     hidden_block_count_y
      - .offset:         64
        .size:           4
        .value_kind:     hidden_block_count_z
      - .offset:         68
        .size:           2
        .value_kind:     hidden_group_size_x
      - .offset:         70
        .size:           2
        .value_kind:     hidden_group_size_y
      - .offset:         72
        .size:           2
        .value_kind:     hidden_group_size_z
      - .offset:         74
        .size:           2
        .value_kind:     hidden_remainder_x
      - .offset:         76
        .size:           2
        .value_kind:     hidden_remainder_y
      - .offset:         78
        .size:           2
        .value_kind:     hidden_remainder_z
      - .offset:         96
        .size:           8
        .value_kind:     hidden_global_offset_x
      - .offset:         104
        .size:           8
        .value_kind:     hidden_global_offset_y
      - .offset:         112
        .size:           8
        .value_kind:     hidden_global_offset_z
      - .offset:         120
        .size:           2
        .value_kind:     hidden_grid_dims
      - .offset:         136
        .size:           8
        .value_kind:     hidden_hostcall_buffer
      - .offset:         144
        .size:           8
        .value_kind:     hidden_multigrid_sync_arg
      - .offset:         152
        .size:           8
        .value_kind:     hidden_heap_v1
      - .offset:         160
        .size:           8
        .value_kind:     hidden_default_queue
      - .offset:         168
        .size:           8
        .value_kind:     hidden_completion_action
      - .offset:         176
        .size:           4
        .value_kind:     hidden_dynamic_lds_size
      - .offset:         256
        .size:           8
        .value_kind:     hidden_queue_ptr
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 312
    .max_flat_workgroup_size: 128
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     24
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     50
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
