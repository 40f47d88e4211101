"""What each library takes, and the reason that explain gives for what it refuses."""

import pytest
import torch

import opmux


def statuses(op, *tensors, arch, **options):
    """Each implementation of this backend: its status, and its reason."""
    explained = opmux.explain(op, *tensors, arch=arch, **options)
    return {c.name: (c.status, c.reason) for c in explained.candidates if c.name.startswith("vendor")}


def heads(batch=2, seq=128, heads=8, head_dim=64, dtype=torch.bfloat16):
    return torch.empty(batch, seq, heads, head_dim, dtype=dtype)


def qkv(seq_q=128, seq_k=128, head_dim=64, value_dim=64, dtype=torch.bfloat16):
    return (
        heads(seq=seq_q, head_dim=head_dim, dtype=dtype),
        heads(seq=seq_k, heads=2, head_dim=head_dim, dtype=dtype),
        heads(seq=seq_k, heads=2, head_dim=value_dim, dtype=dtype),
    )


TAKEN = [
    ("sm_90", qkv(), {}, {"vendor:cudnn", "vendor:flash"}),
    ("sm_90", qkv(head_dim=192, value_dim=128), {}, {"vendor:cudnn"}),
    ("sm_90", qkv(seq_q=256), {}, {"vendor:cudnn", "vendor:flash"}),
    ("sm_90", qkv(), {"causal": True}, {"vendor:cudnn", "vendor:flash"}),
    ("sm_90", qkv(seq_q=1), {"causal": True}, {"vendor:flash"}),  # cuDNN's mask is aligned top-left
    ("sm_90", qkv(seq_q=256), {"causal": True}, set()),  # rows that attend to nothing
    ("sm_90", qkv(), {"window": (64, 0)}, {"vendor:flash"}),
    ("sm_80", qkv(), {}, {"vendor:flash"}),
    ("cpu", qkv(), {}, {"vendor:cpu_flash"}),
    ("cpu", qkv(), {"causal": True}, {"vendor:cpu_flash"}),
    ("cpu", qkv(dtype=torch.float64), {}, {"vendor:cpu_flash"}),
    ("gfx942", qkv(), {}, set()),
]


@pytest.mark.parametrize(("arch", "tensors", "options", "expected"), TAKEN)
def test_attention_is_taken_by_the_libraries_that_can(arch, tensors, options, expected):
    found = statuses(opmux.attention, *tensors, arch=arch, **options)
    assert {name for name, (status, _) in found.items() if status in ("chosen", "accepted")} == expected


TOP_LEFT = "causal = True is not False, and seq_q = 1 is not equal to seq_k = 128"

REFUSED = [
    ("sm_90", qkv(seq_q=1), {"causal": True}, "vendor:cudnn", TOP_LEFT),
    ("sm_90", qkv(), {"window": (64, 0)}, "vendor:cudnn", "window = (64, 0) is not (-1, -1)"),
    ("sm_90", qkv(), {"softcap": 30.0}, "vendor:flash", "softcap = 30.0 is more than 0"),
    ("sm_90", qkv(head_dim=36, value_dim=36), {}, "vendor:cudnn", "head_dim = 36 is not a multiple of 8"),
    ("sm_90", qkv(dtype=torch.float32), {}, "vendor:cudnn", "q is float32, takes bfloat16, float16"),
    ("sm_90", qkv(seq_k=0), {}, "vendor:flash", "seq_k = 0 is less than 1"),
    ("sm_80", qkv(), {}, "vendor:cudnn", "archs: sm_90, this is sm_80"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "tensors", "options", "name", "reason"), REFUSED)
def test_attention_that_a_library_cannot_do_is_refused_with_the_reason(arch, tensors, options, name, reason):
    assert statuses(opmux.attention, *tensors, arch=arch, **options)[name] == ("rejected", reason)


def test_a_tensor_off_16_bytes_is_refused_on_a_gpu_and_taken_on_the_cpu():
    x = torch.empty(4 * 64 + 1, dtype=torch.bfloat16)[1:].view(4, 64)
    w = torch.empty(32, 64, dtype=torch.bfloat16)
    assert statuses(opmux.linear, x, w, arch="sm_90")["vendor:blas"] == (
        "rejected",
        "this is sm_90, and x is not aligned to 16 bytes",
    )
    assert statuses(opmux.linear, x, w, arch="cpu")["vendor:blas"][0] == "chosen"


def test_gradients_of_16_bits_whose_rows_begin_off_16_bytes_are_left_out_on_a_gpu():
    def judged(arch, dtype, n):
        tensors = torch.empty(15, n, dtype=dtype), torch.empty(15, 160, dtype=dtype), torch.empty(n, 160, dtype=dtype)
        return statuses(opmux.linear_backward, *tensors, arch=arch)["vendor:blas"]

    assert judged("sm_90", torch.bfloat16, 130) == (
        "rejected",
        "this is sm_90, and x is bfloat16, takes float32, float64, and grad_out is not aligned to 16 bytes",
    )
    for taken in (("sm_90", torch.bfloat16, 136), ("sm_90", torch.float32, 130), ("cpu", torch.bfloat16, 130)):
        assert judged(*taken)[0] == "chosen"


def test_results_of_16_bits_whose_rows_begin_off_16_bytes_are_left_out_on_a_gpu():
    def judged(arch, dtype, n, **options):
        tensors = torch.empty(32, 64, dtype=dtype), torch.empty(n, 64, dtype=dtype), None
        return statuses(opmux.linear, *tensors, arch=arch, **options)["vendor:blas"]

    assert judged("sm_90", torch.bfloat16, 50257) == (
        "rejected",
        "this is sm_90, and x is bfloat16, takes float32, float64, and the result is not asked for in "
        "float32, and n = 50257 is not a multiple of 8",
    )
    for taken in (("sm_90", torch.bfloat16, 50264), ("sm_90", torch.float32, 50257), ("cpu", torch.bfloat16, 50257)):
        assert judged(*taken)[0] == "chosen"
    assert judged("sm_90", torch.bfloat16, 50257, out_dtype=torch.float32)[0] == "chosen"


@pytest.mark.parametrize(("odd", "op"), [("k", opmux.linear), ("n", opmux.linear_backward)])
def test_odd_sums_in_bfloat16_are_left_out_on_a_cpu(odd, op):
    def judged(arch, dtype, size):
        n, k = (64, size) if odd == "k" else (size, 64)
        x, w = torch.empty(33, k, dtype=dtype), torch.empty(n, k, dtype=dtype)
        tensors = (x, w, None) if op is opmux.linear else (torch.empty(33, n, dtype=dtype), x, w)
        return statuses(op, *tensors, arch=arch)["vendor:blas"]

    status, reason = judged("cpu", torch.bfloat16, 5)
    assert (status, reason) == (
        "rejected",
        f"this is cpu, and x is bfloat16, takes float16, float32, float64, and {odd} = 5 is not a multiple of 2",
    )
    assert judged("cpu", torch.bfloat16, 6)[0] == "chosen"
    assert judged("cpu", torch.float32, 5)[0] == "chosen"
    assert "multiple" not in judged("sm_90", torch.bfloat16, 5)[1]


def test_a_row_without_a_nan_has_none_where_its_neighbours_have():
    x = torch.randn(40, 5).bfloat16()
    x[1::2, 0] = torch.nan
    y = opmux.linear(x, torch.randn(96, 5).bfloat16())
    assert not y[::2].isnan().any()
    assert y[1::2].isnan().all()


def test_a_float32_result_of_16_bit_matrices_is_a_gpus():
    x, w = torch.empty(4, 64, dtype=torch.bfloat16), torch.empty(32, 64, dtype=torch.bfloat16)

    def judged(arch):
        return statuses(opmux.linear, x, w, arch=arch, out_dtype=torch.float32)["vendor:blas"]

    reason = "out_dtype is float32, takes bfloat16, float16, and this is {}"
    assert judged("cpu") == ("rejected", reason.format("cpu"))
    assert judged("gfx942") == ("rejected", reason.format("gfx942"))
    assert judged("sm_90")[0] == "chosen"
    assert (
        statuses(opmux.linear, x.float(), w.float(), arch="cpu", out_dtype=torch.float32)["vendor:blas"][0] == "chosen"
    )


def test_lse_in_16_bits_on_the_cpu_is_left_to_the_reference():
    reason = "q is bfloat16, takes float32, float64"
    assert statuses(opmux.attention_lse, *qkv(), arch="cpu")["vendor:cpu_flash"] == ("rejected", reason)


def test_rms_norm_is_claimed_where_torch_has_one_kernel_for_it():
    x, weight = torch.empty(4, 64), torch.empty(64)
    assert statuses(opmux.rms_norm, x, weight, arch="sm_90")["vendor:fused"][0] in ("chosen", "accepted")
    assert statuses(opmux.rms_norm, x, weight, arch="cpu")["vendor:fused"][0] == "rejected"
    refused = statuses(opmux.rms_norm, x, weight, arch="sm_90", weight_offset=1.0)["vendor:fused"]
    assert refused == ("rejected", "weight_offset = 1.0 is not 0.0")


def test_masked_attention_is_chosen_with_its_caveat():
    explained = opmux.explain(opmux.attention, *qkv(), arch="sm_90", causal=True)
    assert explained.chosen.name == "vendor:cudnn"
    caveat = "a NaN or infinity in a masked-out key or value may spread"
    assert explained.chosen.caveats == (caveat,)
    assert f"priority 20; {caveat}" in str(explained)


def gradients(*qkv, arch="sm_90", **options):
    """What the backward of attention finds, with the result in q's place."""
    q, k, v = qkv
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1])
    return statuses(opmux.attention_backward, q, q, k, v, q, lse, arch=arch, **options)


def test_gradients_are_taken_where_no_key_is_shared():
    q = heads()
    found = gradients(q, q, q)
    assert found["vendor:cudnn"][0] == "chosen"
    assert found["vendor:flash"] == ("rejected", "experimental: only when asked for by name")
    assert gradients(*qkv())["vendor:cudnn"] == ("rejected", "heads = 8 is not equal to kv_heads = 2")


def test_gradients_of_shared_keys_are_there_for_those_who_name_them():
    name = "vendor:cudnn_gqa"
    numerics = "the gradients of a key are rounded to 16 bits for each query head that shares it, then summed"
    refused = ("rejected", f"different numerics ({numerics}): only when asked for by name")
    assert gradients(*qkv())[name] == refused
    with opmux.policy.override(prefer=[name]):
        assert gradients(*qkv())[name][0] == "chosen"


def test_one_query_with_one_key_has_no_gradient_by_cudnn():
    one = heads(seq=1)
    assert gradients(one, one, one)["vendor:cudnn"] == (
        "rejected",
        "seq_q = 1 is less than 2, and seq_k = 1 is less than 2",
    )
    assert gradients(one, heads(seq=2), heads(seq=2))["vendor:cudnn"][0] == "chosen"


def test_gradients_of_wide_heads_are_left_out_where_the_kernel_does_not_fit():
    q = heads(head_dim=256)
    with opmux.policy.override(prefer=["vendor:flash"]):
        assert gradients(q, q, q, arch="sm_80")["vendor:flash"][0] == "chosen"
        assert gradients(q, q, q, arch="sm_86")["vendor:flash"] == (
            "rejected",
            "head_dim = 256 is more than 192, and this is sm_86",
        )


def ragged(arch="sm_90", **options):
    q, k, v = (tensor.flatten(0, 1) for tensor in qkv())
    starts = torch.tensor([0, 100, 256], dtype=torch.int32)
    sizes = {"max_seqlen_q": 156, "max_seqlen_k": 156}
    return statuses(opmux.attention_varlen, q, k, v, starts, starts, arch=arch, **sizes, **options)


def test_ragged_attention_is_taken_by_flash_attention_under_any_mask():
    for options in ({}, {"causal": True}, {"window": (64, 0)}):
        assert ragged(**options)["vendor:flash"][0] == "chosen"
    assert ragged(softcap=1.0)["vendor:flash"] == ("rejected", "softcap = 1.0 is more than 0")
    assert ragged(arch="cpu")["vendor:flash"] == ("rejected", "archs: sm_80+, this is cpu")


@pytest.mark.parametrize("op", [opmux.rms_norm_backward, opmux.layer_norm_backward])
def test_gradients_of_norms_stand_behind_kernels_made_for_them(op):
    x, weight = torch.empty(4, 64), torch.empty(64)
    assert statuses(op, x, x, weight, arch="sm_90")["vendor:fused"] == ("chosen", "priority 5")


def test_the_gradient_of_a_layer_norm_in_16_bits_is_left_to_the_reference_on_the_cpu():
    x, weight = torch.empty(4, 64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.bfloat16)
    assert statuses(opmux.layer_norm_backward, x, x, weight, arch="cpu")["vendor:fused"] == (
        "rejected",
        "x is bfloat16, takes float32, float64, and this is cpu",
    )
    assert statuses(opmux.layer_norm_backward, x, x, weight, arch="sm_90")["vendor:fused"][0] == "chosen"


def grouped(groups=4, rows=64, n=256, k=512, dtype=torch.bfloat16, sizes=False):
    offsets = torch.empty(groups + 1, dtype=torch.int32)
    counts = torch.empty(groups, dtype=torch.int32) if sizes else None
    return torch.empty(groups * rows, k, dtype=dtype), torch.empty(groups, n, k, dtype=dtype), offsets, counts


@pytest.mark.parametrize(
    ("arch", "tensors", "reason"),
    [
        ("sm_90", grouped(), None),
        ("cpu", grouped(dtype=torch.float32), None),
        ("sm_90", grouped(sizes=True), "group_sizes is not supported"),
        ("sm_90", grouped(k=100), "k = 100 is not a multiple of 8"),
        ("sm_90", grouped(n=100), "n = 100 is not a multiple of 8"),
        ("sm_90", grouped(groups=1024, rows=1, n=8, k=8), "groups = 1024 is more than 1023"),
        ("sm_80", grouped(), "archs: cpu, sm_90, this is sm_80"),
    ],
)
def test_grouped_products_are_taken_where_torch_has_a_kernel(arch, tensors, reason):
    status, why = statuses(opmux.grouped_linear, *tensors, arch=arch)["vendor:grouped"]
    assert (status in ("chosen", "accepted")) == (reason is None)
    assert reason is None or why == reason


def test_gradients_of_groups_stand_behind_a_kernel_made_for_them():
    x, w, offsets, _ = grouped()
    grad = torch.empty(len(x), w.shape[1], dtype=x.dtype)
    assert statuses(opmux.grouped_linear_backward, grad, x, w, offsets, arch="sm_90")["vendor:grouped"][0] == "chosen"
    status, why = statuses(opmux.grouped_linear_backward, grad.mT.contiguous().mT, x, w, offsets, arch="sm_90")[
        "vendor:grouped"
    ]
    assert (status, why) == ("rejected", "grad_out is not contiguous: strides [1, 256]")


def scales(groups=4, rows=64, n=256, k=512, blocks=(1, 1), w_rows=256):
    x, w, offsets, _ = grouped(groups, rows, n, k, torch.float8_e4m3fn)
    x_scale = torch.empty(groups * rows, blocks[0])
    return x, w, offsets, x_scale, torch.empty(groups, w_rows, blocks[1])


@pytest.mark.parametrize(
    ("tensors", "out_dtype", "reason"),
    [
        (scales(), torch.bfloat16, None),
        (scales(blocks=(4, 4), w_rows=2), torch.bfloat16, "k_blocks = 4 is not 1"),
        (scales(), torch.float32, "out_dtype is float32, takes bfloat16"),
        (scales(k=520), torch.bfloat16, "k = 520 is not a multiple of 16"),
    ],
)
def test_scaled_grouped_products_are_taken_with_scales_of_rows(tensors, out_dtype, reason):
    found = statuses(opmux.scaled_grouped_linear, *tensors, arch="sm_90", out_dtype=out_dtype)
    status, why = found["vendor:grouped"]
    assert (status in ("chosen", "accepted")) == (reason is None)
    assert reason is None or why == reason
