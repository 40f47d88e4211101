"""Calls as DeepGEMM 2.6.1's own tests make them, computed by the reference, and the signatures they are made by."""

import inspect
from typing import Any

import pytest
import torch

from opmux_deepgemm import compat
from opmux_deepgemm.compat import dense, grouped, summed

BF16, F32, FP8, I32 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32

RECIPES = "recipe=None recipe_a=None recipe_b=None"
FP8_MORE = f"{RECIPES} compiled_dims='nk' disable_ue8m0_cast=False"
ENDS = "use_psum_layout=False ensure_zero_padding=True"
SUMS = "compiled_dims='mn' use_psum_layout=False"
SIGNATURES = {
    "fp8_gemm_{form}": f"a b d c=None {FP8_MORE}",
    "fp8_fp4_gemm_{form}": f"a b d c=None {FP8_MORE}",
    "bf16_gemm_{form}": "a b d c=None compiled_dims='nk'",
    "cublaslt_gemm_{form}": "a b d c=None",
    "m_grouped_fp8_gemm_nt_contiguous": f"a b d grouped_layout {FP8_MORE} {ENDS} expected_m_for_psum_layout=None",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": f"a b d grouped_layout {FP8_MORE} {ENDS} expected_m_for_psum_layout=None",
    "m_grouped_fp8_gemm_nn_contiguous": f"a b d grouped_layout {FP8_MORE} {ENDS}",
    "m_grouped_fp8_fp4_gemm_nn_contiguous": f"a b d grouped_layout {FP8_MORE} {ENDS}",
    "m_grouped_bf16_gemm_nt_contiguous": (
        f"a b d grouped_layout compiled_dims='nk' {ENDS} expected_m_for_psum_layout=None"
    ),
    "m_grouped_bf16_gemm_nn_contiguous": f"a b d grouped_layout compiled_dims='nk' {ENDS}",
    "m_grouped_fp8_gemm_nt_masked": f"a b d masked_m expected_m {FP8_MORE}",
    "m_grouped_fp8_fp4_gemm_nt_masked": f"a b d masked_m expected_m {FP8_MORE}",
    "m_grouped_bf16_gemm_nt_masked": "a b d masked_m expected_m compiled_dims='nk'",
    "k_grouped_fp8_gemm_nt_contiguous": f"a b d ks_cpu grouped_layout c=None recipe=(1,1,128) {SUMS}",
    "k_grouped_fp8_gemm_tn_contiguous": f"a b d ks_cpu grouped_layout c=None recipe=(1,1,128) {SUMS}",
    "k_grouped_bf16_gemm_tn_contiguous": f"a b d ks_cpu grouped_layout c=None {SUMS}",
    "transform_sf_into_required_layout": (
        "sf mn k recipe num_groups=None is_sfa=None disable_ue8m0_cast=False psum_layout=None"
    ),
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m=None",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "sf psum_layout=None",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": (
        "sf grouped_layout ks_cpu gran_k k_alignment use_psum_layout=False"
    ),
}
"""Arguments in order, all by place or by name, and their defaults: csrc/apis/gemm.hpp and layout.hpp of 2.6.1."""
FORMS = [
    (name.format(form=form), wanted)
    for name, wanted in SIGNATURES.items()
    for form in (("nt", "nn", "tn", "tt") if "{" in name else ("",))
]


@pytest.mark.parametrize(("name", "wanted"), FORMS)
def test_arguments_are_those_of_2_6_1(name, wanted) -> None:
    found = []
    for argument in inspect.signature(getattr(compat, name)).parameters.values():
        assert argument.kind is argument.POSITIONAL_OR_KEYWORD
        default = "" if argument.default is argument.empty else f"={argument.default!r}".replace(" ", "")
        found.append(argument.name + default)
    extra = found[len(wanted.split()) :]
    assert found[: len(wanted.split())] == wanted.split()
    assert not extra or (extra == ["expected_m_for_psum_layout=None"] and "_nn_" in name)


@pytest.fixture(autouse=True)
def computed_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor, c: torch.Tensor) -> None:
        total.copy_(c + a.float() @ b.float().T)

    for module in (dense, grouped, summed):
        monkeypatch.setattr(module, "BACKEND", "reference")
    monkeypatch.setattr(dense, "_add", add)
    torch.manual_seed(0)


def scaled(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of blocks of so many rows and 128 columns."""
    if x.dim() == 3:
        parts = [scaled(part, rows) for part in x]
        return torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts])
    blocks = x.float().view(len(x) // rows, rows, -1, 128)
    scales = blocks.abs().amax((1, 3)).clamp(1e-4) / 448
    return (blocks / scales[:, None, :, None]).to(FP8).view(x.shape), scales


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found, wanted = found.double(), wanted.double()
    return float(1 - 2 * (found * wanted).sum() / (found.square() + wanted.square()).sum())


NONE: dict[str, Any] = {"recipe": None, "recipe_a": None, "recipe_b": None}
CAST: dict[str, Any] = {"disable_ue8m0_cast": True}


@pytest.mark.parametrize(("accumulate", "dtype"), [(False, BF16), (True, F32)])
def test_dense_codes(accumulate, dtype) -> None:
    a, b = normal(128, 256), normal(256, 256)
    d = torch.randn(128, 256).to(dtype) * 32
    c = d if accumulate else None
    wanted = a.float() @ b.float().T + (d.clone() if accumulate else 0)
    recipes = {**NONE, "recipe": (1, 1, 128) if accumulate else None}
    compat.fp8_fp4_gemm_nt(scaled(a, 1), scaled(b, 1 if accumulate else 128), d, c=c, **CAST, **recipes)
    assert difference(d, wanted) < 1e-3


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("zero", [{}, {"ensure_zero_padding": False}, {"ensure_zero_padding": True}])
def test_groups_of_rows(ends, zero) -> None:
    sizes, n, k = (150, 100, 128), 128, 256
    a, b = torch.zeros(512, k, dtype=BF16), normal(3, n, k)
    rows, layout, wanted, first = [], torch.full((512,), -1, dtype=I32), torch.zeros(512, n), 0
    for group, size in enumerate(sizes):
        rows.append(slice(first, first + size))
        a[rows[-1]], layout[rows[-1]] = normal(size, k), group
        wanted[rows[-1]] = a[rows[-1]].float() @ b[group].float().T
        first = -(-rows[-1].stop // 128) * 128
    if ends:
        layout = torch.tensor([part.stop for part in rows], dtype=I32)
    for call, operands, more in (
        (compat.m_grouped_fp8_fp4_gemm_nt_contiguous, (scaled(a, 1), scaled(b, 128)), {**CAST, **NONE}),
        (compat.m_grouped_bf16_gemm_nt_contiguous, (a, b), {}),
        (compat.m_grouped_bf16_gemm_nn_contiguous, (a, b.mT.contiguous()), {}),
    ):
        d = torch.full((512, n), float("nan"), dtype=BF16)
        call(*operands, d, layout, use_psum_layout=ends, **zero, **more)
        assert all(difference(d[part], wanted[part]) < 1e-3 for part in rows)
    if ends:  # as 2.6.1 has them in order: compiled_dims, and what follows
        compat.m_grouped_bf16_gemm_nt_contiguous(a, b, d.zero_(), layout, "nk", True, False, 140)
        assert all(difference(d[part], wanted[part]) < 1e-3 for part in rows)


@pytest.mark.parametrize("names", [("ks_cpu", "grouped_layout"), ("ks", "ks_tensor"), ()])
@pytest.mark.parametrize("ends", [{}, {"use_psum_layout": False}])
def test_groups_whose_rows_are_summed(names, ends) -> None:
    ks, m, n = [256, 0, 128], 64, 96
    a, b, c = normal(384, m), normal(384, n), torch.randn(3, m, n) * 32
    parts = [slice(sum(ks[:group]), sum(ks[: group + 1])) for group in range(3)]
    wanted = torch.stack([c[group] + a[part].float().T @ b[part].float() for group, part in enumerate(parts)])
    given = (ks, torch.tensor(ks, dtype=I32))

    def flat(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = scaled(x.T.contiguous(), 1)
        return torch.cat([codes[:, part].flatten() for part in parts]), scales

    for call, operands, more in (
        (compat.k_grouped_bf16_gemm_tn_contiguous, (a, b), {}),
        (compat.k_grouped_fp8_gemm_nt_contiguous, (flat(a), flat(b)), {"recipe": (1, 1, 128)}),
    ):
        d = c.clone()
        if names:
            call(*operands, d, **dict(zip(names, given, strict=True)), c=d, **more, **ends)
        else:
            call(*operands, d, *given, d, **more, **ends)
        assert difference(d, wanted) < 1e-3


def test_masked_groups() -> None:
    a, b, counts = normal(3, 32, 256), normal(3, 128, 256), torch.tensor([20, 0, 32], dtype=I32)
    wanted = a.float() @ b.float().mT
    for call, operands, more in (
        (compat.m_grouped_fp8_fp4_gemm_nt_masked, (scaled(a, 1), scaled(b, 128)), {**CAST, **NONE}),
        (compat.m_grouped_bf16_gemm_nt_masked, (a, b), {}),
    ):
        d = torch.zeros(3, 32, 128, dtype=BF16)
        call(*operands, d, counts, 24, **more)
        assert all(difference(d[group, :size], wanted[group, :size]) < 1e-3 for group, size in ((0, 20), (2, 32)))
