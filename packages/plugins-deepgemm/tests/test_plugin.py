"""What the backend claims, and what it refuses, with the reason."""

import pytest
import torch

import opmux
from opmux_deepgemm.configs import Config
from opmux_deepgemm.operand_maps import matrix

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def codes(m: int, n: int, k: int, dtype: torch.dtype = FP8) -> tuple[torch.Tensor, ...]:
    blocks = -(-k // 128)
    scales = meta(m, blocks, dtype=torch.float32), meta(-(-n // 128), blocks, dtype=torch.float32)
    return meta(m, k, dtype=dtype), meta(n, k, dtype=dtype), *scales


def judged(op, *arguments, arch: str = "sm_90", backend: str | None = "deepgemm", name: str = "deepgemm", **options):
    """The candidate of this backend, or the one of this name."""
    plan = opmux.explain(op, *arguments, arch=arch, backend=backend, **options)
    return next(candidate for candidate in plan.candidates if candidate.name == name)


NAMED = {"name": "deepgemm:across", "backend": "deepgemm:across"}
"""What reads operands that lie across k, asked for by name."""


def test_it_is_a_candidate_like_others() -> None:
    found = judged(opmux.linear, meta(4096, 7168), meta(2112, 7168), backend=None)
    assert found.status != "rejected"
    assert judged(opmux.linear, meta(4096, 7168), meta(2112, 7168)).status == "chosen"


def test_a_float32_result_without_a_bias_is_taken() -> None:
    x, w = meta(4096, 7168), meta(2112, 7168)
    assert judged(opmux.linear, x, w, out_dtype=torch.float32).status == "chosen"
    across = meta(7168, 4096).mT
    assert judged(opmux.linear, across, w, name="deepgemm:across", out_dtype=torch.float32).status == "chosen"
    found = judged(opmux.linear, x, w, meta(2112), out_dtype=torch.float32)
    assert (found.status, found.reason) == (
        "rejected",
        "out_dtype is float32, takes bfloat16, and bias is not supported",
    )
    assert judged(opmux.linear, x, w, meta(2112), out_dtype=BF16).status == "chosen"


def test_explain_shows_the_config() -> None:
    plan = opmux.explain(opmux.linear, meta(4096, 7000), meta(2104, 7000), arch="sm_90", backend="deepgemm")
    assert plan.config["kernel"] == "large"
    assert plan.config_source == "heuristic"
    assert "kernel large, block_m" in str(plan)
    plan = opmux.explain(opmux.scaled_linear, *codes(1, 2112, 7168), out_dtype=BF16, arch="sm_90", backend="deepgemm")
    assert plan.config["kernel"] == "small"


def test_explain_shows_what_the_cost_model_would_take_next() -> None:
    out, dy, x, offsets = gradient(4096, 7168, FP8)
    scales = meta(1, 4096, dtype=torch.float32), meta(1, 7168, dtype=torch.float32)
    for op, given, options in (
        (opmux.linear, (meta(4096, 7000), meta(2104, 7000)), {}),
        (opmux.scaled_linear, codes(4096, 2112, 7168), {"out_dtype": BF16}),
        (opmux.grouped_weight_grad, gradient(4096, 7168), {}),
        (opmux.scaled_grouped_weight_grad, (out, dy, x, offsets, *scales), {}),
    ):
        plan = opmux.explain(op, *given, **options, arch="sm_90", backend="deepgemm")
        assert "; its cost model says " in plan.chosen.reason
        assert len(plan.scores) == 4
        others = [score.time_us for score in plan.scores[1:]]
        assert plan.scores[0].config == plan.config
        assert others == sorted(others)


def test_operands_across_k_get_tiles_that_the_matrix_unit_can_transpose() -> None:
    x, w, row = meta(7168, 4096).T, meta(7168, 2112).T, meta(7168, 8)[:, :1].T
    for given in ((x, meta(2112, 7168)), (meta(4096, 7168), w), (x, w), (row, w), (meta(1, 7168), w)):
        plan = opmux.explain(opmux.linear, *given, arch="sm_90", backend="deepgemm")
        assert plan.config["kernel"] == "large"
        assert given[1] is not w or plan.config["block_n"] // plan.config["cluster"] % 64 == 0


@pytest.mark.parametrize("n", [8, 16, 24, 32, 40])
def test_few_rows_of_w_may_lie_across_k(n) -> None:
    for x in (meta(4096, 512), meta(1, 512), meta(512, 4096).T):
        plan = opmux.explain(opmux.linear, x, meta(512, n).T, arch="sm_90", backend="deepgemm")
        assert plan.config["block_n"] == 64


def test_weights_of_groups_across_k_get_tiles_that_the_matrix_unit_can_transpose() -> None:
    w, ends, counts = meta(4, 7168, 2112).mT, meta(5, dtype=torch.int32), meta(4, dtype=torch.int32)
    ragged = opmux.explain(opmux.grouped_linear, meta(4096, 7168), w, ends, arch="sm_90", backend="deepgemm:across")
    masked = opmux.explain(
        opmux.masked_grouped_linear,
        meta(4, 256, 7168),
        w,
        counts,
        expected_m=20,
        arch="sm_90",
        backend="deepgemm:across",
    )
    unasked = opmux.explain(opmux.grouped_linear, meta(4096, 7168), w, ends, arch="sm_90")
    judged = {one.name: (one.status, one.reason) for one in unasked.candidates}
    assert judged["deepgemm:across"][0] == "chosen"
    for plan in (ragged, masked):
        assert plan.chosen.name == "deepgemm:across"
        assert plan.config["block_n"] // plan.config["cluster"] % 64 == 0


def gradient(n: int = 64, k: int = 128, dtype: torch.dtype = BF16) -> tuple[torch.Tensor, ...]:
    offsets = meta(4, dtype=torch.int32)
    return meta(3, n, k, dtype=torch.float32), meta(40, n, dtype=dtype), meta(40, k, dtype=dtype), offsets


INDICES = meta(2, dtype=torch.int32)


def turned(dy: torch.Tensor, dtype: torch.dtype = BF16) -> tuple[torch.Tensor, ...]:
    """The arguments of a gradient with this dy."""
    out, _, x, offsets = gradient(dtype=dtype)
    return out, dy, x, offsets


def test_transposed_operands_of_gradients_are_taken() -> None:
    out, dy, x, offsets = gradient(4096, 7168)
    turned_dy, turned_x = meta(4096, 40).T, meta(7168, 48)[:, :40].T
    for given in ((turned_dy, x), (dy, turned_x), (turned_dy, turned_x)):
        plan = opmux.explain(
            opmux.grouped_weight_grad, out, *given, offsets, arch="sm_90", backend="deepgemm:across"
        )  # fmt: skip
        assert plan.chosen.name == "deepgemm:across"
        assert plan.config["block_n"] % 64 == 0
        found = judged(opmux.grouped_weight_grad, out, *given, offsets, name="deepgemm:across", backend=None)
        assert found.status == "chosen"


def test_rows_of_groups_across_k_are_taken() -> None:
    ends, counts, w = meta(5, dtype=torch.int32), meta(4, dtype=torch.int32), meta(4, 2112, 7168)
    for weights in (w, meta(4, 7168, 2112).mT):
        for op, x, indices, options in (
            (opmux.grouped_linear, meta(7168, 4096).T, ends, {}),
            (opmux.masked_grouped_linear, meta(4, 7168, 256).mT, counts, {"expected_m": 20}),
        ):
            given = (op, x, weights, indices)
            plan = opmux.explain(*given, **options, arch="sm_90", backend="deepgemm:across")
            assert plan.chosen.name == "deepgemm:across"
            assert plan.config["kernel"] == "large"
            assert not plan.config["share_x"]
            found = judged(*given, **options, name="deepgemm:across", backend=None)
            assert found.status == "chosen"


def test_gradients_from_codes_have_a_config() -> None:
    out, dy, x, offsets = gradient(4096, 7168, FP8)
    scales = meta(1, 4096, dtype=torch.float32), meta(1, 7168, dtype=torch.float32)
    for codes_of in (dy, meta(4096, 40, dtype=FP8).T):
        given = (out, codes_of, x, offsets, *scales)
        plan = opmux.explain(opmux.scaled_grouped_weight_grad, *given, arch="sm_90", backend="deepgemm")
        assert plan.config["kernel"] == "large"


def test_gradients_of_weights_have_a_config() -> None:
    plan = opmux.explain(opmux.grouped_weight_grad, *gradient(4096, 7168), arch="sm_90", backend="deepgemm")
    assert plan.config["kernel"] == "large"
    assert plan.config["block_n"] % 64 == 0


@pytest.mark.parametrize(
    ("op", "arguments", "options", "reason"),
    [
        (opmux.grouped_weight_grad, gradient(dtype=torch.float16), {}, "x is float16, takes bfloat16"),
        (opmux.grouped_weight_grad, gradient(n=12), {}, "n = 12 is not a multiple of 8"),
        (opmux.grouped_weight_grad, gradient(k=12), {}, "k = 12 is not a multiple of 8"),
        (opmux.linear, (meta(4, 12), meta(8, 12)), {}, "k = 12 is not a multiple of 8"),
        (opmux.linear, (meta(4, 16), meta(12, 16)), {}, "n = 12 is not a multiple of 8"),
        (opmux.linear, (meta(4, 16).float(), meta(8, 16).float()), {}, "x is float32, takes bfloat16"),
        (opmux.linear, (meta((1 << 23) + 1, 16), meta(8, 16)), {}, "tokens = 8388609 is more than 8388608"),
        (opmux.linear, (meta(4, 16), meta(1 << 20, 16)), {}, "n = 1048576 is more than 524288"),
        (opmux.linear, (meta(4, 1 << 25), meta(8, 1 << 25)), {}, "k = 33554432 is more than 16777216"),
        (
            opmux.linear, (meta(4, 16), meta(16, 32)[:, ::2].T[:8]), {"name": "deepgemm:across"},
            "w has unit stride neither along k nor, as a matrix, across it",
        ),
        (
            opmux.linear, (meta(3, 16, 8).mT, meta(8, 16)), {"name": "deepgemm:across"},
            "x has unit stride neither along k nor, as a matrix, across it",
        ),
        (opmux.linear, (meta(16, 4).T, meta(8, 16)), {"name": "deepgemm:across"}, "x is not aligned to 16 bytes"),
        (opmux.linear, (meta(8, 16), meta(8, 16)), {"name": "deepgemm:across"}, "no operand lies across k"),
        (
            opmux.grouped_linear, (meta(8, 16), meta(2, 8, 16), meta(3, dtype=torch.int32)),
            NAMED, "no operand lies across k",
        ),
        (
            opmux.grouped_linear, (meta(8, 16), meta(1, 16, 8).expand(2, 16, 8).mT, meta(3, dtype=torch.int32)),
            NAMED, "w has unit stride neither along k nor, as a matrix of each group, across it",
        ),
        (
            opmux.grouped_linear, (meta(16, 16)[:, ::2].T, meta(2, 16, 16).mT, meta(3, dtype=torch.int32)),
            NAMED, "x has unit stride neither along k nor, as a matrix, across it",
        ),
        (
            opmux.grouped_linear, (meta(16, 12)[:, :8].T, meta(2, 8, 16), meta(3, dtype=torch.int32)),
            NAMED, "x is not aligned to 16 bytes",
        ),
        (
            opmux.grouped_linear, (meta(16, 8).T, meta(2, 8, 16), meta(3, dtype=torch.int32)),
            {}, "the last stride of x is not 1: strides [1, 8]",
        ),
        (
            opmux.masked_grouped_linear, (meta(1, 16, 8).expand(2, 16, 8).mT, meta(2, 8, 16), INDICES),
            NAMED | {"expected_m": 4}, "x has unit stride neither along k nor, as a matrix of each group, across it",
        ),
        (
            opmux.masked_grouped_linear, (meta(2, 16, 12)[:, :, :8].mT, meta(2, 8, 16), INDICES),
            NAMED | {"expected_m": 4}, "x is not aligned to 16 bytes",
        ),
        (
            opmux.masked_grouped_linear, (meta(2, 16, 8).mT, meta(2, 8, 16), INDICES), {"expected_m": 4},
            "the last stride of x is not 1: strides [128, 1, 8]",
        ),
        (
            opmux.masked_grouped_linear, (meta(2, 8, 16), meta(2, 8, 16), INDICES),
            NAMED | {"expected_m": 4}, "no operand lies across k",
        ),
        (opmux.grouped_weight_grad, gradient(), NAMED, "neither dy nor x is transposed"),
        (
            opmux.grouped_weight_grad, turned(meta(64, 80)[:, ::2].T), NAMED,
            "dy has unit stride neither in its rows nor, as a transposed matrix, in its columns",
        ),
        (opmux.grouped_weight_grad, turned(meta(64, 44)[:, :40].T), NAMED, "dy is not aligned to 16 bytes"),
        (
            opmux.grouped_weight_grad, turned(meta(64, 40).T), {},
            "the last stride of dy is not 1: strides [1, 40]",
        ),
        (
            opmux.grouped_weight_grad, turned(meta(64, 40, dtype=torch.float16).T, torch.float16), NAMED,
            "x is float16, takes bfloat16",
        ),
        (
            opmux.grouped_linear, (meta(8, 16), meta(2, 16, 12)[:, :, :8].mT, meta(3, dtype=torch.int32)),
            NAMED, "w is not aligned to 16 bytes",
        ),
        (opmux.linear, (meta(16, 8).T, meta(8, 16)), {}, "the last stride of x is not 1: strides [1, 8]"),
        (
            opmux.scaled_linear, (codes(4, 8, 32)[0], meta(32, 8, dtype=FP8).T, *codes(4, 8, 32)[2:]),
            {"out_dtype": BF16}, "the last stride of w is not 1: strides [1, 8]",
        ),
        (
            opmux.scaled_linear, (meta(32, 16, dtype=FP8).T, *codes(16, 8, 32)[1:]),
            {"out_dtype": BF16}, "the last stride of x is not 1: strides [1, 16]",
        ),
        (opmux.linear, (meta(4, 20)[:, :16], meta(8, 16)), {}, "x is not aligned to 16 bytes"),
        (opmux.scaled_linear, codes(4, 8, 24), {"out_dtype": BF16}, "k = 24 is not a multiple of 16"),
        (
            opmux.scaled_linear, codes(4, 8, 32, torch.float8_e5m2), {"out_dtype": BF16},
            "x is float8_e5m2, takes float8_e4m3fn",
        ),
        (
            opmux.scaled_linear, codes(4, 8, 32), {"out_dtype": torch.float16},
            "out_dtype is float16, takes bfloat16, float32",
        ),
        (
            opmux.scaled_linear, (*codes(4, 8, 32), meta(8, dtype=torch.float32)), {"out_dtype": BF16},
            "bias is float32, takes bfloat16",
        ),
        (
            opmux.scaled_linear,
            (*codes(4, 256, 256)[:2], meta(4, 1, dtype=torch.float32), meta(256, 1, dtype=torch.float32)),
            {"out_dtype": BF16},
            "x_scale is [4, 1], takes one scale per [1, 128] block of x",
        ),
        (
            opmux.scaled_linear,
            (*codes(4, 256, 256)[:3], meta(256, 2, dtype=torch.float32)),
            {"out_dtype": BF16},
            "w_scale is [256, 2], takes one scale per [128, 128] block of w",
        ),
    ],
)  # fmt: skip
def test_what_it_refuses_has_a_reason(op, arguments, options, reason) -> None:
    found = judged(op, *arguments, **options)
    assert (found.status, found.reason) == ("rejected", reason)


def test_products_that_are_added_take_scales_of_each_row() -> None:
    out, given = meta(4, 256, dtype=torch.float32), codes(4, 256, 256)
    by_row = meta(256, 2, dtype=torch.float32)
    assert judged(opmux.scaled_linear_accumulate, out, *given[:3], by_row).status == "chosen"
    found = judged(opmux.scaled_linear_accumulate, out, *given)
    assert found.reason == "w_scale is [2, 2], takes one scale per [1, 128] block of w"
    found = judged(opmux.scaled_linear_accumulate, meta(4, 257, dtype=torch.float32)[:, 1:], *given[:3], by_row)
    assert found.reason == "out is not aligned to 16 bytes"


def grouped(groups: int, n: int, k: int, *rows: int, dtype: torch.dtype = BF16) -> tuple[torch.Tensor, ...]:
    """x, w and the index data: of ragged groups, or of masked ones where two numbers of rows are given."""
    return (
        meta(*rows, k, dtype=dtype), meta(groups, n, k, dtype=dtype),
        meta(groups + (len(rows) == 1), dtype=torch.int32),
    )  # fmt: skip


def test_groups_are_taken_and_refused_like_one_product() -> None:
    assert judged(opmux.grouped_linear, *grouped(4, 64, 128, 300)).status == "chosen"
    assert judged(opmux.masked_grouped_linear, *grouped(4, 64, 128, 4, 96), expected_m=20).status == "chosen"
    scales = meta(300, 1, dtype=torch.float32), meta(4, 1, 1, dtype=torch.float32)
    given = *grouped(4, 64, 128, 300, dtype=FP8), *scales
    assert judged(opmux.scaled_grouped_linear, *given, out_dtype=BF16).status == "chosen"
    found = judged(opmux.grouped_linear, *grouped(4, 60, 128, 300))
    assert found.reason == "n = 60 is not a multiple of 8"
    found = judged(opmux.masked_grouped_linear, *grouped(2000, 64, 128, 2000, 8), expected_m=20)
    assert found.reason == "groups = 2000 is more than 1024"


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120", "gfx942", "cpu"])
def test_other_archs_are_refused(arch) -> None:
    found = judged(opmux.linear, meta(64, 64), meta(64, 64), arch=arch)
    assert (found.status, found.reason) == ("rejected", f"archs: sm_90, this is {arch}")


def test_a_call_on_the_cpu_says_what_is_missing() -> None:
    with pytest.raises(opmux.errors.UnsupportedCall, match="archs: sm_90, this is cpu"):
        opmux.linear(torch.zeros(8, 8, dtype=BF16), torch.zeros(8, 8, dtype=BF16), backend="deepgemm")


def test_rows_become_a_matrix_that_can_be_copied() -> None:
    rows = torch.zeros(4, 32)
    assert matrix(rows, 32).data_ptr() == rows.data_ptr()
    assert matrix(rows[:, :16], 16).stride() == (32, 1)
    assert matrix(torch.zeros(2, 3, 16), 16).shape == (6, 16)
    assert matrix(rows[0].expand(4, 32), 32).stride() == (32, 1)  # rows that overlap are copied
    assert matrix(rows[::4, :16], 16).stride() == (16, 1)  # one row has no stride of its own


def test_an_empty_result_launches_nothing() -> None:
    from opmux_deepgemm import model, targets

    config = model.linear(opmux.plugin.parse_arch("sm_90"), {"bucket(tokens, 8)": 0, "n": 8, "k": 16})
    x, w = torch.zeros(0, 16, dtype=BF16), torch.zeros(8, 16, dtype=BF16)
    assert targets.linear(x, w, None, config=config).shape == (0, 8)
    x, w, scales = x.to(FP8), w.to(FP8), (torch.zeros(0, 1), torch.zeros(1, 1))
    found = targets.scaled_linear(x, w, *scales, None, out_dtype=torch.float32, config=config)
    assert (found.shape, found.dtype) == ((0, 8), torch.float32)


def test_empty_groups_launch_nothing() -> None:
    from opmux_deepgemm import targets

    config = Config("large", 64, 64, 4, 1)
    w, offsets = torch.zeros(2, 8, 16, dtype=BF16), torch.zeros(3, dtype=torch.int32)
    assert targets.grouped_linear(torch.zeros(0, 16, dtype=BF16), w, offsets, None, config=config).shape == (0, 8)
    x = torch.zeros(3, 16, dtype=BF16)
    assert targets.grouped_linear(x, w[:0], offsets[:1], None, config=config).shape == (3, 8)
    x, counts = torch.zeros(2, 0, 16, dtype=BF16), torch.zeros(2, dtype=torch.int32)
    found = targets.masked_grouped_linear(x, w, counts, expected_m=4, config=config)
    assert found.shape == (2, 0, 8)
