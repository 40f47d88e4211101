"""Kernels of recorded calls, compiled ahead into a bundle that a launch reads."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import opmux
from opmux.plugin import takers
from opmux.shapes import Point
from opmux_deepgemm import model
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Product
from opmux_deepgemm.launching import source
from opmux_deepgemm.prebuilding import kernel_of, product_of
from opmux_jit import CompileFailed, KernelMissing, Source, machine_code, prebuild
from opmux_jit.cache import layers
from opmux_jit.compilers import nvrtc


def points() -> list[Point]:
    """Two calls of one kernel, one of another, one that the backend refuses and one of an op that it has not."""
    bf16 = {"x": torch.bfloat16, "w": torch.bfloat16}
    codes = {"x": torch.float8_e4m3fn, "w": torch.float8_e4m3fn, "x_scale": torch.float32, "w_scale": torch.float32}
    blocks = {"m_blocks": 3, "k_blocks": 2, "w_rows": 1, "w_blocks": 2}
    return [
        Point("linear", bf16, {"tokens": 3, "k": 256, "n": 64}),
        Point("linear", bf16, {"tokens": 4, "k": 256, "n": 64}),
        Point("linear", bf16, {"tokens": 3, "k": 256, "n": 65}),
        Point("scaled_linear", codes, {"batch": 1, "m": 3, "k": 256, "n": 64, **blocks}, {"out_dtype": torch.float32}),
        Point("rms_norm", {"x": torch.bfloat16, "weight": torch.bfloat16}, {"tokens": 3, "hidden": 256}),
    ]


def test_a_bundle_has_the_kernels_that_calls_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[tuple[str, int, int]] = []
    made = prebuild(["sm_90"], points(), tmp_path / "bundle", processes=2, tick=lambda *tick: ticks.append(tick))
    assert (made.kernels, made.failures, made.written) == ({"deepgemm": 2}, [], True)
    assert ticks == [("deepgemm", 1, 2), ("deepgemm", 2, 2)]
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    monkeypatch.setenv("OPMUX_BUNDLES", str(tmp_path / "bundle"))
    layers.forget()
    config = model.linear(opmux.plugin.parse_arch("sm_90"), {"bucket(tokens, 8)": 4, "n": 64, "k": 256})
    assert machine_code(source(Product("bfloat16", "bfloat16", 64, 256), config)).code[:4] == b"\x7fELF"
    with pytest.raises(KernelMissing, match="opmux prebuild --arch sm_90 --backend deepgemm --op linear"):
        machine_code(source(Product("bfloat16", "bfloat16", 72, 256), config))


def test_the_result_of_a_call_is_that_of_its_product() -> None:
    x, w = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4, 256), (64, 256)))
    for out_dtype, result in ((None, "bfloat16"), (torch.float32, "float32")):
        (taker,) = takers(opmux.linear, x, w, arch="sm_90", backend="deepgemm", out_dtype=out_dtype)
        assert product_of(taker.call) == Product("bfloat16", result, 64, 256)


def test_the_kernel_of_a_call_says_how_its_scales_lie() -> None:
    x, w = (torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta") for shape in ((100, 512), (64, 512)))
    x_scale, w_scale = torch.empty(100, 4, device="meta"), torch.empty(1, 4, device="meta")
    config = Config("large", 64, 64, 4, 1, copied_scales=True)
    for scales, lie in ((x_scale, "rows"), (torch.empty(4, 100, device="meta").T, "columns")):
        given = x, w, scales, w_scale
        (taker,) = takers(opmux.scaled_linear, *given, arch="sm_90", backend="deepgemm", out_dtype=torch.bfloat16)
        product, taken = kernel_of(taker.call, config)
        assert (product.x_scales, product.w_together, taken) == (lie, True, config)
        assert kernel_of(taker.call, replace(config, copied_scales=False))[0] == product_of(taker.call)


def test_the_product_of_a_call_says_how_its_operands_lie() -> None:
    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    offsets, counts = meta(4, dtype=torch.int32), meta(3, dtype=torch.int32)
    ragged = Product("bfloat16", "bfloat16", 64, 256, groups="ragged", x_across=True)
    masked = Product("bfloat16", "bfloat16", 64, 256, groups="masked", x_across=True, w_across=True)
    added = Product("bfloat16", "float32", 64, 256, groups="ragged", accumulate=True)
    out, dy, x = meta(3, 64, 256, dtype=torch.float32), meta(40, 64), meta(40, 256)
    for name, op, given, options, wanted in (
        ("across", opmux.grouped_linear, (meta(256, 40).T, meta(3, 64, 256), offsets), {}, ragged),
        (
            "across", opmux.masked_grouped_linear, (meta(3, 256, 40).mT, meta(3, 256, 64).mT, counts),
            {"expected_m": 4}, masked,
        ),
        ("across", opmux.grouped_weight_grad, (out, meta(64, 40).T, x, offsets), {}, replace(added, dy_turned=True)),
        ("across", opmux.grouped_weight_grad, (out, dy, meta(256, 40).T, offsets), {}, replace(added, x_turned=True)),
        ("", opmux.grouped_weight_grad, (out, dy, x, offsets), {}, added),
    ):  # fmt: skip
        backend = f"deepgemm:{name}".removesuffix(":")
        takers_found = takers(op, *given, arch="sm_90", backend=backend, **options)
        assert [product_of(taker.call) for taker in takers_found] == [wanted]


@pytest.mark.parametrize(("out_dtype", "staged"), [(torch.bfloat16, True), (torch.float32, False)])
def test_a_staged_kernel_is_compiled_for_a_result_of_2_bytes_alone(
    out_dtype: torch.dtype, staged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def compiled(self: nvrtc.Nvrtc, source: Source, folder: Path) -> bytes:
        names.append(source.name)
        raise CompileFailed("not here")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", compiled)
    codes = {"x": torch.float8_e4m3fn, "w": torch.float8_e4m3fn, "x_scale": torch.float32, "w_scale": torch.float32}
    blocks = {"m_blocks": 4096, "k_blocks": 12, "w_rows": 192, "w_blocks": 12}
    dims = {"batch": 1, "m": 4096, "k": 1536, "n": 24568, **blocks}  # no row is of this n
    point = Point("scaled_linear", codes, dims, {"out_dtype": out_dtype})
    assert len(prebuild(["sm_90"], [point], tmp_path / "bundle", processes=1).failures) == 1
    assert ["_staged" in name for name in names] == [staged]


def test_another_arch_has_no_kernels(tmp_path: Path) -> None:
    made = prebuild(["sm_100"], points(), tmp_path / "bundle", processes=1)
    assert (made.kernels, made.failures) == ({"deepgemm": 0}, [])


def test_a_kernel_that_does_not_compile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: nvrtc.Nvrtc, source: object, folder: Path) -> bytes:
        raise CompileFailed("no such instruction")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", refuse)
    made = prebuild(["sm_90"], points()[:1], tmp_path / "bundle", processes=1)
    (failure,) = made.failures
    assert made.kernels == {"deepgemm": 0}
    assert failure.startswith("bf16_bfloat16_64x256_")
    assert failure.endswith(" for sm_90a: no such instruction")


def test_a_config_that_cannot_be_chosen_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arch: object, features: object) -> Config:
        raise ValueError("no config")

    monkeypatch.setattr(model, "linear", fail)
    (failure,) = prebuild(["sm_90"], points()[:1], tmp_path / "bundle", processes=1).failures
    assert failure.endswith(" deepgemm: ValueError: no config")


def test_a_config_that_a_product_cannot_have_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Config("large", 128, 224, 3, 2)  # legal for bfloat16; with scales its tiles touch three blocks of rows
    monkeypatch.setattr(model, "scaled_linear", lambda arch, features: wide)
    made = prebuild(["sm_90"], points(), tmp_path / "bundle", processes=1)
    (failure,) = made.failures
    assert made.kernels == {"deepgemm": 1}
    assert failure.startswith("fp8_float32_64x256_large_128x224_")
    assert " for sm_90a: block_n = 224 expected one whose tiles touch two blocks of 128 rows at most, got 3" in failure
