"""Launches: what the kernel and the maps are asked for, with the driver left out."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import opmux
from opmux.arch import cpu_plays
from opmux.plugin import BuildFailed
from opmux.testing.poison import poisoned
from opmux_deepgemm import allocation, launching, operand_maps, summing, targets
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_jit import CompileFailed
from opmux_jit.compilers import nvrtc

LARGE, SMALL = Config("large", 128, 96, 4, 2, 2, 8), Config("small", 8, 64, 4, 1, 4)
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every launch: product, config, and the native launch's arguments; maps are what they were asked for.

    Kept launches are made as the native ones are, which refuse addresses that are no multiples of 16.
    """
    found: list[Any] = []

    def kernel_of(product: Product, config: Config) -> SimpleNamespace:
        def repeating(index: int, grid: Any, arguments: Any, tensors: int) -> Any:
            def launch(*given: torch.Tensor) -> bool:
                assert len(given) == tensors
                if any(tensor.data_ptr() % 16 for tensor in given):
                    return False
                found.append((product, config, (*grid, "kept", *(launching._value(a, given) for a in arguments))))
                return True

            return launch

        def on(index: int) -> Any:
            return lambda *given: found.append((product, config, given))

        return SimpleNamespace(on=on, repeating=repeating)

    def tensor_map(matrix: torch.Tensor, box: tuple[int, int], **options: Any) -> tuple[Any, ...]:
        return (*matrix.shape, *matrix.stride(), *box, options["swizzle"].name if options else "NONE")

    monkeypatch.setattr(launching, "kernel_of", kernel_of)
    for module in (operand_maps, summing):
        monkeypatch.setattr(module, "tensor_map", tensor_map)
    monkeypatch.setattr(launching, "units_of", lambda index: 132)
    monkeypatch.setattr(launching, "current_stream", lambda index: 7)
    monkeypatch.setattr(launching, "_kept", {})
    monkeypatch.setattr(launching, "_last", {})
    monkeypatch.setattr(launching, "_last_into", {})
    return found


def test_a_kernel_is_named_for_profilers() -> None:
    for dtype, wanted in (("bfloat16", "bf16_gemm_product"), ("float8_e4m3fn", "fp8_gemm_product")):
        product = Product(dtype, "bfloat16", 200, 512)
        assert launching.entry(product) == wanted
        assert launching.source(product, LARGE).text.startswith(f"#define product {wanted}\n")


def test_a_float32_result(launched) -> None:
    x, w, given = torch.zeros(150, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16), torch.zeros(150, 200)
    assert targets.linear(x, w, None, out_dtype=torch.float32, config=LARGE).dtype == torch.float32
    assert targets.linear(x, w, None, out_dtype=torch.float32, config=LARGE, out=given) is given
    assert [product for product, *_ in launched] == [Product("bfloat16", "float32", 200, 512)] * 2


def test_the_persistent_kernel(launched) -> None:
    x, w, bias = torch.zeros(2, 150, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16), torch.zeros(200, dtype=BF16)
    y = targets.linear(x, w, bias, config=LARGE)
    ((product, config, given),) = launched
    assert (y.shape, y.dtype) == ((2, 150, 200), BF16)
    assert (product, config) == (Product("bfloat16", "bfloat16", 200, 512, True), LARGE)
    assert given == (
        12, 1, 1, 7, (300, 512, 512, 1, 128, 64, "BYTES_128"), (200, 512, 512, 1, 48, 64, "BYTES_128"),
        (300, 200, 200, 1, 64, 32, "BYTES_64"), None, None, bias, 0, 0, 0, 0, 300,
    )  # fmt: skip


def test_weights_of_groups_that_lie_across_k(launched) -> None:
    x, w, offsets = (
        torch.zeros(300, 512, dtype=BF16),
        torch.zeros(3, 512, 208, dtype=BF16)[:, :, :200].mT,
        torch.zeros(4, dtype=torch.int32),
    )
    config = Config("large", 128, 128, 4, 2, 2, 8)
    targets.grouped_linear(x, w, offsets, None, config=config)
    targets.masked_grouped_linear(
        x.view(1, 300, 512), w[:1], torch.zeros(1, dtype=torch.int32), expected_m=9, config=config
    )
    targets.grouped_linear(x, w.contiguous(), offsets, None, config=config)
    ragged, masked, along = launched
    assert ragged[0] == Product("bfloat16", "bfloat16", 200, 512, groups="ragged", w_across=True)
    assert ragged[2][4:6] == (
        (300, 512, 512, 1, 128, 64, "BYTES_128"),
        (3, 512, 200, 106496, 208, 1, 1, 64, 64, "BYTES_128"),
    )
    assert ragged[2][-1] == 3
    assert masked[0] == Product("bfloat16", "bfloat16", 200, 512, groups="masked", w_across=True)
    assert masked[2][5] == (1, 512, 200, 106496, 208, 1, 1, 64, 64, "BYTES_128")
    assert along[0] == Product("bfloat16", "bfloat16", 200, 512, groups="ragged")


def test_rows_of_groups_that_lie_across_k(launched) -> None:
    x, w = torch.zeros(512, 304, dtype=BF16)[:, :300].T, torch.zeros(3, 200, 512, dtype=BF16)
    room = torch.zeros(3, 512, 104, dtype=BF16)[:, :, :100].mT
    offsets, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    config = Config("large", 128, 128, 4, 2, 2, 8)
    for _ in range(2):
        targets.grouped_linear(x, w, offsets, None, config=config)
        targets.masked_grouped_linear(room, w, counts, expected_m=9, config=config)
    targets.masked_grouped_linear(room[:1], w.mT.contiguous().mT[:1], counts[:1], expected_m=9, config=config)
    ragged, masked, again, also, lone = launched
    assert ragged[0] == Product("bfloat16", "bfloat16", 200, 512, groups="ragged", x_across=True)
    assert ragged[2][4:6] == ((512, 300, 304, 1, 64, 64, "BYTES_128"), (600, 512, 512, 1, 64, 64, "BYTES_128"))
    assert (ragged[2][14], ragged[2][-1]) == (300, 3)  # rows, groups
    assert masked[0] == Product("bfloat16", "bfloat16", 200, 512, groups="masked", x_across=True)
    assert masked[2][4] == (3, 512, 100, 53248, 104, 1, 1, 64, 64, "BYTES_128")
    assert masked[2][6] == (300, 200, 200, 1, 64, 64, "BYTES_128")
    assert (masked[2][14], masked[2][-1]) == (100, 3)
    assert lone[0] == Product("bfloat16", "bfloat16", 200, 512, groups="masked", x_across=True, w_across=True)
    assert lone[2][4] == (1, 512, 100, 53248, 104, 1, 1, 64, 64, "BYTES_128")
    assert [one[2][3] for one in (again, also)] == ["kept"] * 2


def test_without_rows_nothing_is_launched_however_operands_lie(launched) -> None:
    offsets, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    config, across = Config("large", 128, 128, 4, 2), torch.zeros(3, 512, 200, dtype=BF16).mT
    for w in (across, across.contiguous()):
        for x in (torch.zeros(0, 512, dtype=BF16), torch.zeros(512, 0, dtype=BF16).T):
            assert targets.grouped_linear(x, w, offsets, None, config=config).shape == (0, 200)
        room = torch.zeros(3, 512, 0, dtype=BF16).mT
        assert targets.masked_grouped_linear(room, w, counts, expected_m=9, config=config).shape == (3, 0, 200)
    none, out = torch.zeros(512, 0, dtype=BF16).T, torch.ones(3, 512, 512)
    targets.grouped_weight_grad(out, none, none, offsets, None, config=config)
    assert bool((out == 1).all())
    assert launched == []


def test_operands_of_gradients_that_are_turned(launched) -> None:
    dy, x = (torch.zeros(columns, 304, dtype=BF16)[:, :300].T for columns in (200, 512))
    offsets, out, config = torch.zeros(4, dtype=torch.int32), torch.zeros(3, 200, 512), Config("large", 128, 64, 4, 2)
    for given in ((dy, x), (dy, x), (dy, x.contiguous()), (dy.contiguous(), x)):
        targets.grouped_weight_grad(out, *given, offsets, None, config=config)
    both, kept, of_dy, of_x = launched
    plain = Product("bfloat16", "float32", 200, 512, groups="ragged", accumulate=True)
    assert both[0] == replace(plain, dy_turned=True, x_turned=True)
    assert both[2][:7] == (
        48, 1, 1, 7, (200, 300, 304, 1, 128, 64, "BYTES_128"), (512, 300, 304, 1, 64, 64, "BYTES_128"),
        (600, 512, 512, 1, 64, 32, "BYTES_128"),
    )  # fmt: skip
    assert both[2][-2:] == (300, 3)
    assert kept[2][3] == "kept"
    assert of_dy[0] == replace(plain, dy_turned=True)
    assert of_dy[2][4:6] == ((200, 300, 304, 1, 128, 64, "BYTES_128"), (300, 512, 512, 1, 64, 64, "BYTES_128"))
    assert of_x[0] == replace(plain, x_turned=True)
    assert of_x[2][4:6] == ((300, 200, 200, 1, 64, 64, "BYTES_128"), (512, 300, 304, 1, 64, 64, "BYTES_128"))


def test_operands_that_lie_across_k(launched) -> None:
    x, w = torch.zeros(512, 304, dtype=BF16)[:, :300].T, torch.zeros(512, 200, dtype=BF16).T
    config = Config("large", 128, 128, 4, 2, 2, 8)
    for _ in range(2):
        targets.linear(x, w, None, config=config)
    targets.linear(x.contiguous(), w, None, config=config)
    targets.linear(x[:1], w.contiguous(), None, config=config)
    (product, _, given), kept, half, row = launched
    assert product == Product("bfloat16", "bfloat16", 200, 512, x_across=True, w_across=True)
    assert given[4:6] == ((512, 300, 304, 1, 64, 64, "BYTES_128"), (512, 200, 200, 1, 64, 64, "BYTES_128"))
    assert kept[2][3] == "kept"
    assert half[0] == Product("bfloat16", "bfloat16", 200, 512, w_across=True)
    assert half[2][4] == (300, 512, 512, 1, 128, 64, "BYTES_128")
    assert row[0] == Product("bfloat16", "bfloat16", 200, 512, x_across=True)
    assert row[2][4] == (512, 1, 304, 1, 64, 64, "BYTES_128")


def test_the_kernel_for_few_rows(launched) -> None:
    x, w = torch.zeros(1, 3, 512).to(FP8), torch.zeros(200, 512).to(FP8)
    x_scale, w_scale = torch.zeros(4, 1, 3).permute(1, 2, 0), torch.zeros(2, 8)[:, :4]
    y = targets.scaled_linear(x, w, x_scale, w_scale, None, out_dtype=torch.float32, config=SMALL)
    ((product, _, given),) = launched
    assert (y.shape, y.dtype) == ((1, 3, 200), torch.float32)
    assert product == Product("float8_e4m3fn", "float32", 200, 512)
    assert given[:6] == (16, 1, 1, 7, (3, 512, 512, 1, 8, 128, "BYTES_128"), (200, 512, 512, 1, 64, 128, "BYTES_128"))
    assert given[6].data_ptr() == y.data_ptr()
    assert given[7].data_ptr() == x_scale.data_ptr()  # scales in any strides: nothing is copied
    assert given[9:] == (None, 1, 3, 8, 1, 3)


def test_copies_of_both_operands_live_until_the_launch(launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operand_maps, "tensor_map", lambda matrix, *_, **__: matrix.data_ptr())
    dy, x = torch.zeros(1, 512, dtype=BF16).expand(300, 512), torch.zeros(1, 512, dtype=BF16).expand(300, 512)
    offsets = torch.zeros(4, dtype=torch.int32)
    targets.grouped_weight_grad(torch.zeros(3, 512, 512), dy, x, offsets, None, config=Config("large", 128, 64, 4, 2))
    ((_, _, given),) = launched
    assert given[4] != given[5]


def test_gradients_from_codes(launched) -> None:
    room, x = torch.zeros(200, 304).to(FP8), torch.zeros(300, 512).to(FP8)
    offsets, sizes = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    dy_scale, x_scale, out = torch.ones(200, 3).T, torch.ones(3, 512), torch.zeros(3, 200, 512)
    given = (room.T[:300], x, offsets, dy_scale, x_scale, sizes)
    targets.scaled_grouped_weight_grad(out, *given, config=LARGE)
    ((product, config, found),) = launched
    assert (product.dtype, product.gradient, product.n, product.k, config) == ("float8_e4m3fn", True, 200, 512, LARGE)
    assert found[:7] == (
        36, 1, 1, 7, (200, 300, 304, 1, 128, 128, "BYTES_128"), (512, 300, 304, 1, 48, 128, "BYTES_128"),
        (600, 512, 512, 1, 64, 32, "BYTES_128"),
    )  # fmt: skip
    assert [t.data_ptr() for t in found[7:12]] == [t.data_ptr() for t in (out, dy_scale, x_scale, offsets, sizes)]
    assert found[12:] == (1, 3, 512, 1, 300, 3)


@pytest.mark.parametrize("counted", [False, True])
def test_sums_take_the_shortest_way_too(launched, monkeypatch, counted) -> None:
    offsets, sizes = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32) if counted else None
    x, dy, out = torch.zeros(304, 512, dtype=BF16), torch.zeros(304, 200, dtype=BF16), torch.zeros(3, 200, 512)
    scales = torch.ones(3, 200), torch.ones(3, 512)
    codes = [torch.zeros(width, 304).to(FP8).T for width in (200, 512)]
    tall, wide = Config("large", 128, 64, 4, 2), Config("large", 128, 96, 4, 2, 2, 8)
    for _ in range(3):
        targets.grouped_weight_grad(out, dy, x, offsets, sizes, config=tall)
        targets.scaled_grouped_weight_grad(out, *codes, offsets, *scales, sizes, config=wide)
    assert [given[3] for _, _, given in launched] == [7, 7, "kept", "kept", "kept", "kept"]
    real, scaled, real_kept, scaled_kept = (given[4:] for _, _, given in launched[:4])
    for first, again in ((real, real_kept), (scaled, scaled_kept)):
        for one, other in zip(first, again, strict=True):
            assert one is other or one == other or one.data_ptr() == other.data_ptr()
    copied = codes[0].contiguous()
    for _ in range(2):
        targets.scaled_grouped_weight_grad(out, copied, codes[1], offsets, *scales, sizes, config=wide)
    assert [given[3] for _, _, given in launched[6:]] == [7, 7]  # copies are not kept


def test_codes_are_copied_where_their_columns_cannot_be_read() -> None:
    room = torch.randn(8, 32).to(FP8)
    as_they_are = room[:, :20].T
    assert summing.columns_of(as_they_are).data_ptr() == room.data_ptr()
    assert summing.columns_of(room[:1, :20].T).stride() == (32, 1)
    for codes in (room, room[:, 1:21].T, room[:, :1], room.flatten()[:160].view(8, 20).T):
        columns = summing.columns_of(codes)
        assert torch.equal(columns.view(torch.uint8), codes.T.view(torch.uint8))
        assert columns.data_ptr() % 16 == columns.stride(0) % 16 == 0


def test_gradients_from_codes_are_added_to_any_memory(launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "add_scaled_gradients", lambda *given: given[-1].add_(1))
    dy, x, offsets = torch.zeros(3, 8).to(FP8), torch.zeros(3, 4).to(FP8), torch.zeros(3, dtype=torch.int32)
    for out in (torch.zeros(2, 8, 4), torch.zeros(4, 8, 2).permute(2, 1, 0), torch.zeros(65)[1:].view(2, 8, 4)):
        targets.scaled_grouped_weight_grad(out, dy, x, offsets, torch.ones(1, 8), torch.ones(1, 4), None, config=LARGE)
        assert bool((out == 1).all())
    empty = torch.zeros(2, 8, 4)
    targets.scaled_grouped_weight_grad(
        empty, dy[:0], x[:0], offsets, torch.ones(0, 8), torch.ones(0, 4), None, config=LARGE
    )
    assert not empty.any()


def test_ragged_groups(launched) -> None:
    x, w = torch.zeros(150, 512, dtype=BF16), torch.zeros(3, 200, 512, dtype=BF16)
    offsets, sizes = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    y = targets.grouped_linear(x, w, offsets, sizes, config=LARGE)
    ((product, _, given),) = launched
    assert product == Product("bfloat16", "bfloat16", 200, 512, groups="ragged")
    assert given[:7] == (
        18, 1, 1, 7, (150, 512, 512, 1, 128, 64, "BYTES_128"), (600, 512, 512, 1, 48, 64, "BYTES_128"),
        (150, 200, 200, 1, 64, 32, "BYTES_64"),
    )  # fmt: skip
    assert given[7:15] == (None, None, None, 0, 0, 0, 0, 150)
    assert [t.data_ptr() for t in given[15:18]] == [y.data_ptr(), offsets.data_ptr(), sizes.data_ptr()]
    assert given[18:] == (0, 0, 3)


def test_masked_groups_of_codes(launched) -> None:
    x, w = torch.zeros(3, 40, 512).to(FP8), torch.zeros(3, 200, 512).to(FP8)
    x_scale, w_scale = torch.zeros(3, 4, 40).mT, torch.zeros(3, 2, 4)
    counts = torch.zeros(3, dtype=torch.int32)
    y = targets.scaled_masked_grouped_linear(
        x, w, counts, x_scale, w_scale, expected_m=20, out_dtype=BF16, config=LARGE
    )
    ((product, _, given),) = launched
    assert (y.shape, product.groups) == ((3, 40, 200), "masked")
    assert given[6] == (120, 200, 200, 1, 64, 32, "BYTES_64")
    assert given[7].data_ptr() == x_scale.data_ptr()
    assert given[9:15] == (None, 1, 40, 4, 1, 40)
    assert given[16] is None
    assert given[17].data_ptr() == counts.data_ptr()
    assert given[18:] == (160, 8, 3)


COPIED = replace(LARGE, copied_scales=True)


def codes(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=FP8)


def test_scales_that_lie_so_are_copied_by_the_copy_engine(launched) -> None:
    x, w, w_scale = codes(150, 512), codes(200, 512), torch.zeros(2, 4)
    in_rows, in_columns = torch.zeros(150, 4), torch.zeros(4, 152)[:, :150].T
    for x_scale in (in_rows, in_columns, in_rows):
        targets.scaled_linear(x, w, x_scale, w_scale, None, out_dtype=BF16, config=COPIED)
    targets.scaled_linear(x.view(3, 50, 512), w, in_rows.view(3, 50, 4), w_scale, None, out_dtype=BF16, config=COPIED)
    rows, columns, again, batch = launched
    plain = Product("float8_e4m3fn", "bfloat16", 200, 512)
    assert rows[0] == replace(plain, x_scales="rows", w_together=True) == again[0] == batch[0]
    assert columns[0] == replace(plain, x_scales="columns", w_together=True)
    assert rows[2][7] == again[2][7] == batch[2][7] == (150, 4, 4, 1, 128, 4, "NONE")
    assert columns[2][7] == (4, 150, 152, 1, 4, 128, "NONE")
    assert rows[2][8] is in_rows
    assert again[2][3] == "kept"


def test_scales_of_groups_are_copied_too(launched) -> None:
    offsets, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    w, w_scale, tall = codes(3, 200, 512), torch.zeros(3, 2, 4), Config("large", 256, 64, 2, 2, copied_scales=True)
    for config, x_scale in (
        (COPIED, torch.zeros(150, 4)), (COPIED, torch.zeros(4, 152)[:, :150].T), (tall, torch.zeros(4, 152)[:, :150].T),
    ):  # fmt: skip
        targets.scaled_grouped_linear(
            codes(150, 512), w, offsets, x_scale, w_scale, None, out_dtype=BF16, config=config
        )
    for x_scale in (torch.zeros(3, 50, 4), torch.zeros(3, 4, 52)[..., :50].mT):
        targets.scaled_masked_grouped_linear(
            codes(3, 50, 512), w, counts, x_scale, w_scale, expected_m=9, out_dtype=BF16, config=COPIED
        )
    assert [product.x_scales for product, *_ in launched] == ["rows", "columns", "columns", "rows", "columns"]
    assert [given[7] for *_, given in launched] == [
        (150, 4, 4, 1, 128, 4, "NONE"),
        (4, 150, 152, 1, 4, 132, "NONE"),  # a group begins anywhere, and copies at multiples of four rows
        (4, 150, 152, 1, 4, 132, "NONE"),  # in two boxes
        (3, 50, 4, 200, 4, 1, 1, 128, 4, "NONE"),
        (3, 4, 50, 208, 52, 1, 1, 4, 128, "NONE"),
    ]


@pytest.mark.parametrize(
    ("x_scale", "w_scale", "wanted"),
    [
        (torch.zeros(150, 4), torch.zeros(2, 5)[:, :4], ("rows", False)),
        (torch.zeros(150, 4), torch.zeros(4, 2).T, ("rows", False)),
        (torch.zeros(150, 4), torch.zeros(9)[1:].view(2, 4), ("rows", False)),
        (torch.zeros(150, 5)[:, :4], torch.zeros(2, 4), ("", False)),
        (torch.zeros(4, 150).T, torch.zeros(2, 4), ("", False)),
        (torch.zeros(601)[1:].view(150, 4), torch.zeros(2, 4), ("", False)),
        (torch.zeros(1, 4).expand(150, 4), torch.zeros(2, 4), ("", False)),
        (torch.zeros(150, 8)[:, ::2], torch.zeros(2, 4), ("", False)),
        (torch.zeros(150, 8)[:, :3], torch.zeros(2, 3), ("rows", False)),
    ],
    ids=[
        "rows of w of five", "columns of w", "w not aligned", "rows of five", "columns of 150", "not aligned",
        "one row", "every other one", "three blocks of k",
    ],
)  # fmt: skip
def test_other_scales_are_loaded_by_threads(x_scale, w_scale, wanted) -> None:
    product = Product("float8_e4m3fn", "bfloat16", 200, 512)
    found = operand_maps.with_scales(product, COPIED, x_scale, w_scale)
    assert found == replace(product, x_scales=wanted[0], w_together=wanted[1])
    assert operand_maps.with_scales(product, LARGE, x_scale, w_scale) == product
    assert operand_maps.with_scales(product, COPIED, None, None) == product


def test_scales_of_what_is_added_are_copied_where_both_lie_so(launched) -> None:
    config, x, out = replace(COPIED, cluster=1), codes(150, 512), torch.zeros(150, 208)
    plain = Product("float8_e4m3fn", "float32", 208, 512, accumulate=True)
    x_rows, w_columns, w_rows, of_five = torch.zeros(150, 4), torch.zeros(4, 208).T, torch.zeros(208, 4), (208, 5)
    for w_scale in (w_columns, w_rows, torch.zeros(of_five)[:, :4]):
        targets.scaled_linear_accumulate(out, x, codes(208, 512), x_rows, w_scale, config=config)
    scales = torch.zeros(4, 152)[:, :150].T, torch.zeros(4, 200).T
    targets.scaled_linear_accumulate(torch.zeros(150, 200), x, codes(200, 512), *scales, config=config)
    columns, rows, loaded, odd = launched
    assert columns[0] == replace(plain, x_scales="rows", w_scales="columns")
    assert rows[0] == replace(plain, x_scales="rows", w_scales="rows")
    assert loaded[0] == plain
    assert odd[0] == replace(plain, n=200, x_scales="columns", w_scales="columns")
    assert [one[2][5] for one in (columns, rows, odd)] == [
        (208, 512, 512, 1, 96, 128, "BYTES_128"), (208, 512, 512, 1, 96, 128, "BYTES_128"),
        (200, 512, 512, 1, 96, 128, "BYTES_128"),
    ]  # fmt: skip
    assert columns[2][7:] == ((150, 4, 4, 1, 128, 4, "NONE"), (4, 208, 208, 1, 4, 96, "NONE"), 150)
    assert rows[2][8] == (208, 4, 4, 1, 96, 4, "NONE")
    assert odd[2][7:] == ((4, 150, 152, 1, 4, 128, "NONE"), (4, 200, 200, 1, 4, 96, "NONE"), 150)


@pytest.mark.parametrize(("blocks", "stages", "copied"), [(4, 4, True), (5, 4, True), (3, 3, False), (5, 5, False)])
def test_few_blocks_of_k_are_no_multiple_of_four_where_scales_are_copied(blocks, stages, copied) -> None:
    product = Product("float8_e4m3fn", "float32", 208, 128 * blocks, accumulate=True)
    scales = torch.zeros(150, 8)[:, :blocks], torch.zeros(blocks, 208).T
    config = Config("large", 64, 64, stages, 1, copied_scales=True)
    assert bool(operand_maps.with_scales(product, config, *scales).w_scales) == copied


def test_a_kept_launch_does_not_copy_scales_that_are_not_aligned(launched) -> None:
    x, w, w_scale = codes(150, 512), codes(200, 512), torch.zeros(2, 4)
    for x_scale in (torch.zeros(150, 4), torch.zeros(601)[1:].view(150, 4)):
        targets.scaled_linear(x, w, x_scale, w_scale, None, out_dtype=BF16, config=COPIED)
    assert [(product.x_scales, given[3]) for product, _, given in launched] == [("rows", 7), ("", 7)]


def test_a_call_like_one_before_is_launched_as_it_was(launched) -> None:
    x, w = torch.zeros(150, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16)
    for given in (x, x.clone(), torch.zeros(150, 1024, dtype=BF16)[:, :512]):
        targets.linear(given, w, None, config=LARGE)
    first, second, other = (given for _, _, given in launched)
    assert (first[3], second[3]) == (7, "kept")
    assert first[4:6] == second[4:6]
    assert other[3] == 7  # other strides: prepared again
    targets.linear(x, w, None, config=Config("large", 128, 96, 4, 2, 2, 8))  # another object: it may be another config
    assert launched[-1][2][3] == 7


def test_a_call_like_the_last_one_takes_the_shortest_way(launched, monkeypatch) -> None:
    x, w, bias = torch.zeros(150, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16), torch.zeros(200, dtype=BF16)
    for _ in range(2):
        targets.linear(x, w, None, config=LARGE)
        targets.linear(x, w, bias, config=LARGE)
    monkeypatch.setattr(launching, "_kept", {})  # what follows does not ask it
    y = targets.linear(x, w, None, config=LARGE)
    z = targets.linear(x, w, bias, config=LARGE)
    assert (y.shape, y.dtype, z.shape) == ((150, 200), BF16, (150, 200))
    assert [given[3] for _, _, given in launched[4:]] == ["kept", "kept"]
    targets.linear(x[:100], w, None, config=LARGE)
    assert launched[6][2][3] == 7  # other rows
    given = x.to(FP8), w.to(FP8), torch.zeros(150, 4), torch.zeros(2, 4)
    for dtype in (BF16, BF16, BF16, torch.float32):
        assert targets.scaled_linear(*given, None, out_dtype=dtype, config=LARGE).dtype == dtype
    assert [given[3] for _, _, given in launched[7:]] == [7, "kept", "kept", 7]
    launching.forget()
    assert launching.repeated(LARGE, (x, w), BF16, None) is None


def test_results_that_are_given_take_the_shortest_way_too(launched, monkeypatch) -> None:
    x, w = torch.zeros(150, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16)
    out = torch.zeros(150, 200, dtype=BF16)
    for _ in range(2):
        assert targets.linear(x, w, None, config=LARGE, out=out) is out
    monkeypatch.setattr(launching, "_kept", {})
    other = out.clone()
    assert targets.linear(x, w, None, config=LARGE, out=other) is other
    assert targets.linear(x, w, None, config=LARGE).shape == (150, 200)
    (*_, last), allocated = launched[2:]
    assert last[3] == allocated[2][3] == "kept"
    assert last[6][:4] == (150, 200, 200, 1)
    wide = torch.zeros(150, 400, dtype=BF16)[:, :200]
    assert targets.linear(x, w, None, config=LARGE, out=wide) is wide
    total, given = torch.zeros(150, 208)[:, :200], (x.to(FP8), w.to(FP8), torch.zeros(150, 4), torch.zeros(200, 4))
    for _ in range(3):
        targets.scaled_linear_accumulate(total, *given, config=LARGE)
    assert [found[2][3] for found in launched[-3:]] == [7, "kept", "kept"]
    assert targets.scaled_linear(*given[:3], torch.zeros(2, 4), None, out_dtype=BF16, config=LARGE).dtype == BF16
    assert launched[-1][2][3] == 7


@pytest.mark.parametrize("sizes", [None, torch.zeros(3, dtype=torch.int32)])
def test_groups_take_the_shortest_way_too(launched, monkeypatch, sizes) -> None:
    offsets, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    x, w = torch.zeros(150, 512, dtype=BF16), torch.zeros(3, 200, 512, dtype=BF16)
    scales = torch.zeros(150, 4), torch.zeros(3, 2, 4)
    codes = x.to(FP8), w.to(FP8)
    of_group = {"expected_m": 8, "out_dtype": BF16}
    calls = {
        "grouped_linear": ((x, w, offsets, sizes), {}),
        "scaled_grouped_linear": ((*codes, offsets, *scales, sizes), {"out_dtype": BF16}),
        "masked_grouped_linear": ((x.view(3, 50, 512), w, counts), {"expected_m": 8}),
        "scaled_masked_grouped_linear": (
            (codes[0].view(3, 50, 512), codes[1], counts, scales[0].view(3, 50, 4), scales[1]), of_group
        ),
    }  # fmt: skip
    for name, (tensors, options) in calls.items():
        config = Config("large", 128, 96, 4, 2, 2, 8)
        first, second, third = (getattr(targets, name)(*tensors, **options, config=config) for _ in range(3))
        assert first.shape == second.shape == third.shape
        assert len({t.data_ptr() for t in (first, second, third)}) == 3
        prepared, *kept = launched[-3:]
        assert prepared[2][3] == 7
        assert [found[2][3] for found in kept] == ["kept", "kept"]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (0, 8), (1, 8)])
def test_results_are_made_like_the_first_one(shape, fast, monkeypatch) -> None:
    calls, plain = [], torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(
        torch._C._dynamo.guards, "_empty_strided_cpu", lambda *given: calls.append(given) or plain(*given)
    )
    if not fast:
        monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    like = torch.zeros(shape, dtype=BF16)
    make = allocation.maker(like)
    made, other = make(), make()
    assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), BF16, like.device)
    assert not made.requires_grad
    assert made.numel() == 0 or made.data_ptr() != other.data_ptr()
    assert len(calls) == (2 if fast else 0)
    with poisoned() as allocated:
        assert make().isnan().all()
    assert len(allocated) == (made.numel() > 0)


def test_what_has_to_be_copied_or_is_not_aligned_is_not_kept(launched) -> None:
    x, w = torch.zeros(2, 4, 3, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16)
    for _ in range(2):
        targets.linear(x[:, ::2].mT.contiguous().mT.contiguous()[:, :1].expand(2, 3, 3, 512), w, None, config=LARGE)
    assert [given[3] for _, _, given in launched] == [7, 7]
    bias = torch.zeros(204, dtype=BF16)[1:201]
    for _ in range(2):
        targets.linear(x, w, bias, config=LARGE)
    assert [given[3] for _, _, given in launched[2:]] == [7, 7]


def test_kept_launches_are_bounded(launched, monkeypatch) -> None:
    monkeypatch.setattr(launching, "MOST_KEPT", 2)
    w = torch.zeros(200, 512, dtype=BF16)
    for m in (1, 2, 3):
        targets.linear(torch.zeros(m, 512, dtype=BF16), w, None, config=LARGE)
    assert len(launching._kept) == 1
    for stride in range(6):
        targets.linear(torch.zeros(3, 520 + 8 * stride, dtype=BF16)[:, :512], w, None, config=LARGE)
    assert [len(alike) for alike in launching._kept.values()] == [launching.MOST_ALIKE]


def test_a_gpu_keeps_its_own_launches(launched, monkeypatch) -> None:
    w, strides = (torch.zeros(200, 512, dtype=BF16), [520 + 8 * i for i in range(launching.MOST_ALIKE + 1)])
    x = [torch.zeros(3, stride, dtype=BF16)[:, :512] for stride in strides]
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    for given in x[:-1]:
        targets.linear(given, w, None, config=LARGE)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 1)
    for _ in range(2):
        targets.linear(x[-1], w, None, config=LARGE)
    assert [given[3] for _, _, given in launched[-2:]] == [7, "kept"]


def test_the_source_says_whom_it_is_for() -> None:
    found = launching.source(Product("float8_e4m3fn", "bfloat16", 576, 7168), SMALL)
    assert (found.arch, found.backend, found.op) == ("sm_90a", "deepgemm", "scaled_linear")
    kernel_of = launching.kernel_of.__wrapped__
    assert kernel_of(Product("bfloat16", "bfloat16", 8, 64), SMALL).signature == "mmppppqqqqi"
    grouped = Product("bfloat16", "bfloat16", 8, 64, groups="masked")
    assert kernel_of(grouped, LARGE).signature == "mmmpppqqqqipppqqi"
    assert launching.source(grouped, LARGE).op == "masked_grouped_linear"


def test_a_tensor_for_the_result_is_written_to(launched) -> None:
    x, w = torch.zeros(4, 512, dtype=BF16), torch.zeros(200, 512, dtype=BF16)
    out = torch.zeros(4, 200, dtype=BF16)
    assert targets.linear(x, w, None, config=SMALL, out=out) is out
    assert launched[0][2][6].data_ptr() == out.data_ptr()
    gapped = torch.zeros(4, 400, dtype=BF16)[:, ::2]
    assert targets.linear(x, w, None, config=SMALL, out=gapped) is gapped
    assert launched[1][2][6].data_ptr() != gapped.data_ptr()


@pytest.mark.parametrize("layout", ["ragged", "masked"])
@pytest.mark.parametrize("step", [1, 2])
def test_rows_of_no_group_stay_in_a_result_that_the_kernels_cannot_write(monkeypatch, layout, step) -> None:
    def first_row(config: Config, given: launching.Operands, y: torch.Tensor) -> None:
        y[..., 0, :] = 1

    def used_memory(self: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, 7, dtype=dtype)

    monkeypatch.setattr(targets, "multiply", first_row)
    monkeypatch.setattr(torch.Tensor, "new_empty", used_memory)
    memory = torch.full((4 * 200 * step + 8,), 5, dtype=BF16)
    out = memory[1 : 1 + 4 * 200 * step : step].view(4, 200)  # misaligned, or with gaps too
    x, w, numbers = torch.zeros(4, 512, dtype=BF16), torch.zeros(1, 200, 512, dtype=BF16), torch.ones(2).int()
    if layout == "ragged":
        assert targets.grouped_linear(x, w, numbers, numbers[:1], config=LARGE, out=out) is out
    else:
        targets.masked_grouped_linear(x[None], w, numbers[:1], expected_m=1, config=LARGE, out=out[None])
    assert out[:, 0].tolist() == out[:, -1].tolist() == [1, 5, 5, 5]


def test_a_product_is_added_to_a_tensor_in_its_own_strides(launched) -> None:
    x, w, scales = (
        torch.zeros(150, 512).to(FP8),
        torch.zeros(200, 512).to(FP8),
        (torch.zeros(150, 4), torch.zeros(200, 4)),
    )
    out = torch.zeros(150, 256)[:, :200]
    for _ in range(2):
        assert targets.scaled_linear_accumulate(out, x, w, *scales, config=LARGE) is None
    targets.scaled_linear_accumulate(torch.zeros(150, 200), x, w, *scales, config=LARGE)
    assert [given[3] for _, _, given in launched] == [7, "kept", 7]
    product, _, given = launched[0]
    assert product == Product("float8_e4m3fn", "float32", 200, 512, accumulate=True)
    assert given[6] == (150, 200, 256, 1, 64, 32, "BYTES_128")
    assert given[9:] == (None, 4, 1, 4, 1, 150)
    assert launching.source(product, LARGE).op == "scaled_linear_accumulate"


def test_a_kernel_that_does_not_compile_is_a_failed_build(monkeypatch) -> None:
    def refuse(self: nvrtc.Nvrtc, source: object, folder: object) -> bytes:
        raise CompileFailed("no such instruction")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", refuse)
    monkeypatch.setattr(launching, "units_of", lambda index: 132)
    x, w = torch.zeros(4, 1032, dtype=BF16), torch.zeros(136, 1032, dtype=BF16)
    with pytest.raises(BuildFailed, match="no such instruction"):  # the core quarantines it, and the next choice runs
        targets.linear(x, w, None, config=LARGE)


def test_after_a_failed_compilation_the_next_implementation_runs_and_that_is_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[object] = []

    def refuse(self: nvrtc.Nvrtc, source: object, folder: object) -> bytes:
        compiled.append(source)
        raise CompileFailed("no such instruction")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", refuse)
    monkeypatch.setattr(launching, "units_of", lambda index: 132)
    x, w = torch.randn(4, 1048).to(BF16), torch.randn(136, 1048).to(BF16)
    with cpu_plays("sm_90"), caplog.at_level("WARNING", logger="opmux"):
        assert opmux.explain(opmux.linear, x, w).chosen.name == "deepgemm"
        for _ in range(2):
            assert torch.equal(opmux.linear(x, w), opmux.linear(x, w, backend="reference"))
        assert [(q.name, q.scope) for q in opmux.quarantined()] == [("deepgemm", "arch")]
        assert opmux.explain(opmux.linear, x, w).chosen.name == "reference"
        assert len(compiled) == 1, "what failed is compiled again only where it is named"
        with pytest.raises(opmux.errors.BackendFault, match="no such instruction"):
            opmux.linear(x, w, backend="deepgemm")
    said = [record.getMessage() for record in caplog.records if "quarantined" in record.getMessage()]
    assert [line.partition(" (")[0] for line in said] == ["linear: deepgemm"]
    assert said[0].endswith("is quarantined on sm_90: no such instruction; the next choice runs")
