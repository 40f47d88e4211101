	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	softmax
	.p2align	8
	.type	softmax,@function
softmax:
	s_load_dwordx2 s[2:3], s[0:1], 0x0
	s_load_dwordx8 s[4:11], s[0:1], 0x8
	s_waitcnt lgkmcnt(0)
	s_branch .LBB0_0
	.p2align	8
.LBB0_0:
	s_mul_i32 s12, s6, s12
	v_readfirstlane_b32 s0, v0
	s_ashr_i32 s13, s12, 31
	s_and_b32 s7, s0, 0xc0
	s_lshl_b64 s[0:1], s[12:13], 1
	v_and_or_b32 v2, v0, 63, s7
	s_add_u32 s8, s2, s0
	v_lshlrev_b32_e32 v1, 1, v2
	s_addc_u32 s0, s3, s1
	s_and_b32 s9, s0, 0xffff
	v_lshlrev_b32_e32 v3, 2, v2
	v_bfrev_b32_e32 v4, 1
	v_cmp_gt_i32_e64 s[0:1], s6, v1
	s_mov_b32 s11, 0x27000
	s_mov_b32 s10, 0x7ffffffe
	v_cndmask_b32_e64 v1, v4, v3, s[0:1]
	buffer_load_dword v1, v1, s[8:11], 0 offen
	v_lshlrev_b32_e32 v0, 2, v0
	v_and_b32_e32 v0, 12, v0
	v_mov_b32_e32 v3, 0xff800000
	v_add_u32_e32 v7, 0, v0
	s_lshr_b32 s6, s7, 4
	v_mov_b32_e32 v8, s6
	s_mov_b32 s2, 0x3fb8aa3b
	s_mov_b32 s3, 0xc2fc0000
	v_mov_b32_e32 v5, 0x42800000
	v_not_b32_e32 v6, 63
	s_waitcnt vmcnt(0)
	v_lshlrev_b32_e32 v0, 16, v1
	v_and_b32_e32 v1, 0xffff0000, v1
	v_cndmask_b32_e64 v1, v3, v1, s[0:1]
	v_cndmask_b32_e64 v0, v3, v0, s[0:1]
	v_max_f32_e32 v3, v1, v1
	v_max_f32_e32 v9, v0, v0
	v_max_f32_e32 v3, v9, v3
	s_nop 1
	v_mov_b32_dpp v9, v3 row_shr:8 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	s_nop 1
	v_mov_b32_dpp v9, v3 row_shr:4 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	s_nop 1
	v_mov_b32_dpp v9, v3 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	s_nop 1
	v_mov_b32_dpp v9, v3 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	v_mov_b32_e32 v9, v3
	s_nop 1
	v_mov_b32_dpp v9, v9 row_bcast:15 row_mask:0xa bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	s_nop 1
	v_mov_b32_dpp v9, v3 row_bcast:31 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v9, v9, v9
	v_max_f32_e32 v3, v3, v9
	v_lshlrev_b32_e32 v9, 3, v2
	v_readlane_b32 s6, v3, 63
	s_nop 1
	v_mov_b32_e32 v3, s6
	ds_write_b32 v8, v3
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b32 v3, v7
	s_waitcnt lgkmcnt(0)
	s_barrier
	v_mov_b32_dpp v2, v3 quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v3, v3, v3
	v_max_f32_e32 v2, v2, v2
	v_max_f32_e32 v2, v3, v2
	s_nop 1
	v_mov_b32_dpp v3, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_max_f32_e32 v3, v3, v3
	v_max_f32_e32 v2, v2, v3
	v_pk_add_f32 v[0:1], v[0:1], v[2:3] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]
	s_nop 0
	v_pk_mul_f32 v[0:1], v[0:1], s[2:3] op_sel_hi:[1,0]
	s_nop 0
	v_cmp_gt_f32_e32 vcc, s3, v1
	v_cmp_gt_f32_e64 s[2:3], s3, v0
	s_nop 0
	v_cndmask_b32_e32 v2, 0, v5, vcc
	v_cndmask_b32_e64 v3, 0, v5, s[2:3]
	v_add_f32_e32 v1, v1, v2
	v_add_f32_e32 v0, v0, v3
	v_exp_f32_e32 v1, v1
	v_exp_f32_e32 v0, v0
	v_cndmask_b32_e32 v2, 0, v6, vcc
	v_cndmask_b32_e64 v3, 0, v6, s[2:3]
	v_ldexp_f32 v1, v1, v2
	v_ldexp_f32 v0, v0, v3
	v_add_f32_e32 v2, v0, v1
	s_nop 1
	v_add_f32_dpp v2, v2, v2 row_shr:8 row_mask:0xf bank_mask:0xf bound_ctrl:1
	s_nop 1
	v_add_f32_dpp v2, v2, v2 row_shr:4 row_mask:0xf bank_mask:0xf bound_ctrl:1
	s_nop 1
	v_add_f32_dpp v2, v2, v2 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
	s_nop 1
	v_add_f32_dpp v2, v2, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_mov_b32_e32 v3, v2
	s_nop 1
	v_mov_b32_dpp v3, v3 row_bcast:15 row_mask:0xa bank_mask:0xf bound_ctrl:1
	v_add_f32_e32 v2, v3, v2
	s_nop 1
	v_add_f32_dpp v2, v2, v2 row_bcast:31 row_mask:0xf bank_mask:0xf bound_ctrl:1
	s_nop 0
	v_readlane_b32 s2, v2, 63
	s_nop 1
	v_mov_b32_e32 v2, s2
	ds_write_b32 v8, v2
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b32 v2, v7
	s_lshl_b64 s[2:3], s[12:13], 2
	s_add_u32 s8, s4, s2
	s_addc_u32 s2, s5, s3
	s_and_b32 s9, s2, 0xffff
	s_waitcnt lgkmcnt(0)
	v_add_f32_dpp v2, v2, v2 quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf bound_ctrl:1
	s_nop 1
	v_add_f32_dpp v2, v2, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1
	v_div_scale_f32 v3, s[2:3], v2, v2, v0
	v_div_scale_f32 v5, s[2:3], v2, v2, v1
	v_rcp_f32_e32 v6, v3
	v_rcp_f32_e32 v7, v5
	v_div_scale_f32 v8, vcc, v0, v2, v0
	v_div_scale_f32 v10, s[2:3], v1, v2, v1
	v_fma_f32 v11, -v3, v6, 1.0
	v_fma_f32 v12, -v5, v7, 1.0
	v_fmac_f32_e32 v6, v11, v6
	v_fmac_f32_e32 v7, v12, v7
	v_mul_f32_e32 v11, v8, v6
	v_mul_f32_e32 v12, v10, v7
	v_fma_f32 v13, -v3, v11, v8
	v_fma_f32 v14, -v5, v12, v10
	v_fmac_f32_e32 v11, v13, v6
	v_fmac_f32_e32 v12, v14, v7
	v_fma_f32 v3, -v3, v11, v8
	v_fma_f32 v5, -v5, v12, v10
	v_div_fmas_f32 v3, v3, v6, v11
	s_mov_b64 vcc, s[2:3]
	v_div_fixup_f32 v0, v3, v2, v0
	v_div_fmas_f32 v3, v5, v7, v12
	v_div_fixup_f32 v1, v3, v2, v1
	v_cndmask_b32_e64 v2, v4, v9, s[0:1]
	buffer_store_dwordx2 v[0:1], v2, s[8:11], 0 offen
	s_endpgm
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel softmax
		.amdhsa_group_segment_fixed_size 0
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 40
		.amdhsa_user_sgpr_count 12
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 10
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 0
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 15
		.amdhsa_next_free_sgpr 14
		.amdhsa_accum_offset 16
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
      - .offset:         16
        .size:           4
        .value_kind:     by_value
      - .address_space:  global
        .offset:         24
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         32
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 40
    .max_flat_workgroup_size: 256
    .name:           softmax
    .private_segment_fixed_size: 0
    .sgpr_count:     20
    .sgpr_spill_count: 0
    .symbol:         softmax.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     15
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
