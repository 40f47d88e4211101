"""DeepGEMM's names on a Hopper GPU, held to float64: `python packages/plugins-deepgemm/benchmarks/compat_on_gpu.py`.

Prints a line for each call; a call that ends the context ends the process, with 1 as every wrong one.
"""

import os
import sys
from collections.abc import Callable

os.environ.setdefault("OPMUX_PLUGINS", "deepgemm")

import torch
from torch import Tensor

import opmux_deepgemm.compat as deep_gemm

M, N, K, GROUPS = 200, 264, 512, 3


def codes(*shape: int, block: int = 1) -> tuple[Tensor, Tensor]:
    """Random codes, and scales of blocks of so many rows and 128 columns."""
    *groups, rows, columns = shape
    scales = torch.rand(*groups, -(-rows // block), columns // 128, device="cuda") + 0.5
    return torch.randn(*shape, device="cuda").to(torch.float8_e4m3fn), scales


def exact(pair: tuple[Tensor, Tensor] | Tensor, block: int = 1) -> Tensor:
    """What codes and scales stand for."""
    if isinstance(pair, Tensor):
        return pair.double()
    values, scales = pair
    wide = scales.double().repeat_interleave(128, -1).repeat_interleave(block, -2)
    return values.double() * wide[..., : values.shape[-2], : values.shape[-1]]


def dense(kind: str, form: str) -> Callable[[], None]:
    """A product in one of the four forms; memory lies along k in all of them."""

    def run() -> None:
        call = getattr(deep_gemm, f"{kind}_gemm_{form}")
        a, b = (codes(M, K), codes(N, K, block=128)) if kind == "fp8" else (bf16(M, K), bf16(N, K))
        d = torch.full((M, N), float("nan"), dtype=torch.bfloat16, device="cuda")
        turned = [
            one if letter == wanted else (one.mT if isinstance(one, Tensor) else tuple(part.mT for part in one))
            for one, letter, wanted in zip((a, b), form, "nt", strict=True)
        ]
        call(*turned, d)
        compare(d, exact(a) @ exact(b, 128).mT)

    return run


def bf16(*shape: int) -> Tensor:
    """Random values."""
    return torch.randn(*shape, device="cuda").bfloat16()


def contiguous(kind: str) -> Callable[[], None]:
    """Groups of rows with gaps before, between and after them."""

    def run() -> None:
        indices = torch.full((M,), -1, dtype=torch.int32, device="cuda")
        for group, (begin, end) in enumerate(((3, 70), (80, 81), (128, 190))):
            indices[begin:end] = group
        a, b = (codes(M, K), codes(GROUPS, N, K, block=128)) if kind == "fp8" else (bf16(M, K), bf16(GROUPS, N, K))
        d = torch.full((M, N), 7.0, dtype=torch.bfloat16, device="cuda")
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")(a, b, d, indices)
        left, right = exact(a), exact(b, 128)
        for group in range(GROUPS):
            compare(d[indices == group], left[indices == group] @ right[group].mT)

    return run


def masked(kind: str) -> Callable[[], None]:
    """The first rows of each group."""

    def run() -> None:
        counts = torch.tensor([64, 0, 17], dtype=torch.int32, device="cuda")
        a = codes(GROUPS, 64, K) if kind == "fp8" else bf16(GROUPS, 64, K)
        b = codes(GROUPS, N, K, block=128) if kind == "fp8" else bf16(GROUPS, N, K)
        d = torch.full((GROUPS, 64, N), 7.0, dtype=torch.bfloat16, device="cuda")
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")(a, b, d, counts, 27)
        left, right = exact(a), exact(b, 128)
        for group, count in enumerate(counts.tolist()):
            compare(d[group, :count], left[group, :count] @ right[group].mT)

    return run


def summed() -> None:
    """Rows of each group are summed, with what is added and without."""
    rows = (70, 0, 131)
    a, b = bf16(sum(rows), N), bf16(sum(rows), K)
    c, counts = torch.randn(len(rows), N, K, device="cuda"), torch.tensor(rows, dtype=torch.int32, device="cuda")
    for added in (None, c):
        d = torch.full((len(rows), N, K), float("nan"), device="cuda")
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, list(rows), counts, added)
        begin = 0
        for group, size in enumerate(rows):
            left, right = (one[begin : begin + size].double() for one in (a, b))
            compare(d[group], left.mT @ right + (0 if added is None else c[group].double()))
            begin += size


def added(kind: str, form: str) -> Callable[[], None]:
    """Products with what is added, in float32 and in bfloat16; of codes with scales of each row of b too."""

    def run() -> None:
        call = getattr(deep_gemm, f"{kind}_gemm_{form}")
        a, b = (codes(M, K), codes(N, K, block=128)) if kind == "fp8" else (bf16(M, K), bf16(N, K))
        wanted = exact(a) @ exact(b, 128).mT
        if form == "nn" and kind == "bf16":
            b = b.mT.contiguous()
        elif form == "nn":
            b = tuple(part.mT for part in b)
        for dtype in (torch.float32, torch.bfloat16):
            d = torch.full((M, N), float("nan"), dtype=dtype, device="cuda")
            call(a, b, d)
            compare(d, wanted)
            c = torch.randn(M, N, device="cuda").to(dtype)
            call(a, b, d, c)
            compare(d, wanted + c.double())
            d = c.clone()
            call(a, b, d, c=d)
            compare(d, wanted + c.double())
        if kind == "fp8" and form == "nt":
            rows, d = codes(N, K), torch.randn(M, N, device="cuda")
            before = d.double()
            call(a, rows, d, c=d, recipe=(1, 1, 128))
            compare(d, before + exact(a) @ exact(rows).mT)

    return run


def by_ends(kind: str) -> Callable[[], None]:
    """Groups that are given by where they end, of which each begins at a multiple of 128 rows."""

    def run() -> None:
        ends, rows = torch.tensor([100, 128, 300], dtype=torch.int32, device="cuda"), ((0, 100), (128, 128), (128, 300))
        a = codes(384, K) if kind == "fp8" else bf16(384, K)
        b = codes(GROUPS, N, K, block=128) if kind == "fp8" else bf16(GROUPS, N, K)
        d = torch.full((384, N), 7.0, dtype=torch.bfloat16, device="cuda")
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")(a, b, d, ends, use_psum_layout=True)
        left, right = exact(a), exact(b, 128)
        for group, (begin, end) in enumerate(rows):
            compare(d[begin:end], left[begin:end] @ right[group].mT)

    return run


def summed_codes(form: str) -> Callable[[], None]:
    """Codes of each group's rows are summed, from DeepGEMM's flat layout too."""

    def run() -> None:
        ks = [256, 0, 384]
        counts, made = torch.tensor(ks, dtype=torch.int32, device="cuda"), []
        for width in (M, N):
            values = torch.randn(sum(ks), width, device="cuda").to(torch.float8_e4m3fn)
            made.append((values, torch.rand(sum(ks) // 128, width, device="cuda") + 0.5))
        left, right = (v.double() * s.double().repeat_interleave(128, 0) for v, s in made)
        if form == "nt":
            made = [(torch.cat([part.T.reshape(-1) for part in v.split(ks)]), s.T) for v, s in made]
        c = torch.randn(len(ks), M, N, device="cuda")
        for given in (c, c.clone()):
            d = given if given is c else torch.full_like(c, float("nan"))
            before = given.double()
            getattr(deep_gemm, f"k_grouped_fp8_gemm_{form}_contiguous")(*made, d, ks, counts, given)
            begin = 0
            for group, size in enumerate(ks):
                place = slice(begin, begin + size)
                compare(d[group], before[group] + left[place].mT @ right[place])
                begin += size

    return run


def layouts() -> None:
    """Scales in DeepGEMM's layout give the same bits as plain ones."""
    a, b = codes(M, K), codes(N, K, block=128)
    aligned = deep_gemm.get_col_major_tma_aligned_tensor(a[1])
    assert torch.equal(aligned, a[1])
    assert aligned.stride(0) == 1
    assert torch.equal(deep_gemm.transform_sf_into_required_layout(a[1], M, K, (1, 128, 128), is_sfa=True), a[1])
    results = [torch.empty(M, N, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for d, scales in zip(results, (a[1], aligned), strict=True):
        deep_gemm.fp8_gemm_nt((a[0], scales), b, d)
    assert torch.equal(*results)


def multiprocessors() -> None:
    """Fewer multiprocessors give the same bits."""
    a, b = bf16(4 * M, K), bf16(N, K)
    results = [torch.empty(4 * M, N, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    most = deep_gemm.get_num_sms()
    for d, units in zip(results, (most, 4), strict=True):
        deep_gemm.set_num_sms(units)
        deep_gemm.bf16_gemm_nt(a, b, d)
    deep_gemm.set_num_sms(most)
    assert torch.equal(*results)
    assert deep_gemm.get_num_sms() == most


def compare(found: Tensor, wanted: Tensor) -> None:
    """Check values that are rounded to bfloat16."""
    off = (found.double() - wanted).abs().max() if found.numel() else torch.zeros(())
    most = wanted.abs().max() if wanted.numel() else torch.zeros(())
    if not bool(off <= 0.01 * most + 1e-6):  # NaN is wrong too
        raise AssertionError(f"{float(off):.3g} off, the largest is {float(most):.3g}")


def main() -> int:
    """Run every call."""
    torch.manual_seed(11)
    cases: dict[str, Callable[[], None]] = {
        f"{kind}_gemm_{form}": dense(kind, form) for kind in ("fp8", "bf16") for form in ("nt", "nn", "tn", "tt")
    }
    for kind in ("fp8", "bf16"):
        cases[f"m_grouped_{kind}_gemm_nt_contiguous"] = contiguous(kind)
        cases[f"m_grouped_{kind}_gemm_nt_masked"] = masked(kind)
        cases[f"m_grouped_{kind}_gemm_nt_contiguous by ends"] = by_ends(kind)
        cases |= {f"{kind}_gemm_{form} added": added(kind, form) for form in ("nt", "nn")}
    cases["k_grouped_bf16_gemm_tn_contiguous"] = summed
    cases |= {f"k_grouped_fp8_gemm_{form}_contiguous": summed_codes(form) for form in ("nt", "tn")}
    cases |= {"layouts of scales": layouts, "set_num_sms": multiprocessors}
    wrong = 0
    for name, run in cases.items():
        try:
            run()
            torch.cuda.synchronize()
            print(f"compat {name}: right", flush=True)
        except Exception as error:
            wrong += 1
            print(f"compat {name}: WRONG {type(error).__name__}: {str(error)[:300]}", flush=True)
            if "CUDA error" in str(error):
                break
    print(f"compat: {len(cases) - wrong} of {len(cases)} right", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
