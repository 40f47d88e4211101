"""Launches: what the kernel and the maps are asked for, with the driver left out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opmux_deepgemm import launching, targets
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product

LARGE, SMALL = Config("large", 128, 96, 4, 2, 2, 8), Config("small", 8, 64, 4, 1, 4)
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every launch: product, config, and the native launch's arguments; maps are what they were asked for."""
    found: list[Any] = []

    def kernel_of(product: Product, config: Config) -> SimpleNamespace:
        return SimpleNamespace(on=lambda index: lambda *given: found.append((product, config, given)))

    def tensor_map(matrix: torch.Tensor, box: tuple[int, int], **options: Any) -> tuple[Any, ...]:
        return (*matrix.shape, *matrix.stride(), *box, options["swizzle"].name)

    monkeypatch.setattr(launching, "kernel_of", kernel_of)
    monkeypatch.setattr(launching, "tensor_map", tensor_map)
    monkeypatch.setattr(launching, "units_of", lambda index: 132)
    monkeypatch.setattr(launching, "current_stream", lambda index: 7)
    monkeypatch.setattr(launching, "_maps", {})
    return found


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


def test_maps_are_kept_by_what_they_depend_on(launched, monkeypatch) -> None:
    monkeypatch.setattr(launching, "MOST_MAPS", 2)
    matrix = torch.zeros(16, 64, dtype=BF16)
    first = launching.map_of(matrix, 8, 64)
    assert launching.map_of(matrix.clone()[:8], 8, 64) != first  # another one, of other sizes
    assert launching.map_of(matrix, 8, 64) is first
    assert launching.map_of(matrix, 16, 64) != first  # the table was full, and began again
    assert launching.map_of(matrix, 8, 64) is not first


def test_the_source_says_whom_it_is_for() -> None:
    found = launching.source(Product("float8_e4m3fn", "bfloat16", 576, 7168), SMALL)
    assert (found.arch, found.backend, found.op) == ("sm_90a", "deepgemm", "scaled_linear")
    assert launching.kernel_of.__wrapped__(Product("bfloat16", "bfloat16", 8, 64), SMALL).signature == "mmppppqqqqi"
