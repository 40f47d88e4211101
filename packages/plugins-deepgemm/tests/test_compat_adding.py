"""What DeepGEMM's names add: c in any memory, and a result that a refused call leaves as it was."""

from collections.abc import Callable
from contextlib import nullcontext as nothing
from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import parse_arch
from opmux_deepgemm import compat
from opmux_deepgemm.compat import adding, dense, summed

BF16, F32, FP8, I32 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32
SIZE = 128


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by the reference; those in bfloat16 that are added by torch, on what the kernel is given."""

    def multiply(config: Any, given: Any, total: torch.Tensor, accumulate: bool) -> None:
        total.add_(given.x.float() @ given.w.float().T)

    for module in (dense, summed):
        monkeypatch.setattr(module, "BACKEND", "reference")
    monkeypatch.setattr(dense, "multiply", multiply)
    torch.manual_seed(0)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are judged as on a Hopper GPU. One that is taken is still refused when it runs, as it is on the CPU."""
    monkeypatch.setattr(adding, "device_arch", lambda kind, index: parse_arch("sm_90"))


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def codes(*shape: int, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    *groups, m, k = shape
    return torch.randn(shape).to(FP8), torch.ones(*groups, -(-m // rows), -(-k // 128))


def flat() -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of two matrices of 128 columns, one after the other, and their scales side by side."""
    return torch.randn(2 * SIZE * 128).to(FP8), torch.ones(SIZE, 2)


def dense_of(call: Callable[..., None], *operands: Any, **keywords: Any) -> Callable[..., None]:
    return lambda d, c: call(*operands, d, c, **keywords)


def grouped_of(call: Callable[..., None], *operands: Any) -> Callable[..., None]:
    return lambda d, c: call(*operands, d, [128, 128], torch.tensor([128, 128], dtype=I32), c)


ROWS = torch.ones(2, SIZE)
PRODUCTS: dict[str, tuple[Callable[..., None], tuple[int, ...]]] = {
    "bf16": (dense_of(compat.bf16_gemm_nt, bf16(SIZE, 64), bf16(SIZE, 64)), ()),
    "rows": (dense_of(compat.fp8_gemm_nt, codes(SIZE, 256), codes(SIZE, 256), recipe=(1, 1, 128)), ()),
    "blocks": (dense_of(compat.fp8_gemm_nt, codes(SIZE, 256), codes(SIZE, 256, rows=128)), ()),
    "sums": (grouped_of(compat.k_grouped_bf16_gemm_tn_contiguous, bf16(256, SIZE), bf16(256, SIZE)), (2,)),
    "sums of codes": (
        grouped_of(compat.k_grouped_fp8_gemm_tn_contiguous, (codes(256, SIZE)[0], ROWS), (codes(256, SIZE)[0], ROWS)),
        (2,),
    ),
    "sums of flat codes": (grouped_of(compat.k_grouped_fp8_gemm_nt_contiguous, flat(), flat()), (2,)),
    "cublaslt": (dense_of(compat.cublaslt_gemm_nt, codes(SIZE, 64)[0], codes(SIZE, 64)[0]), ()),
}


RESULTS = [(product, dtype) for product, (_, groups) in PRODUCTS.items() for dtype in (F32, BF16)[: 1 if groups else 2]]
"""Those of groups are in float32."""


@pytest.mark.parametrize(("product", "dtype"), RESULTS)
@pytest.mark.parametrize("way", ["apart", "itself", "transposed", "behind", "before"])
def test_what_is_added_may_share_memory_with_the_result(computed, product, dtype, way) -> None:
    call, groups = PRODUCTS[product]
    memory = torch.randn(*groups, SIZE, SIZE + 8).flatten().to(dtype)
    count = SIZE * SIZE * (2 if groups else 1)
    d = memory[8 : 8 + count].view(*groups, SIZE, SIZE)
    c = {
        "apart": lambda: d + 0,
        "itself": lambda: d,
        "transposed": lambda: d.mT,
        "behind": lambda: memory[16 : 16 + count].view(d.shape),
        "before": lambda: memory[:count].view(d.shape),
    }[way]()
    before = c.clone()
    call(product_alone := torch.zeros_like(d), None)
    call(d, c)
    torch.testing.assert_close(d.float(), product_alone.float() + before.float(), rtol=1e-2, atol=5e-2)


def refused(name: str, *given: Any, **keywords: Any) -> tuple[Callable[[torch.Tensor], None], tuple[int, ...]]:
    """A call of which d is missing, and d's shape: ``given`` has it in d's place."""
    place = next(place for place, one in enumerate(given) if isinstance(one, torch.Size))
    call, (before, (shape, *after)) = getattr(compat, name), (given[:place], given[place:])
    return (lambda d: call(*before, d, *after, **keywords)), shape


D, DS = torch.Size((SIZE, SIZE)), torch.Size((2, SIZE, SIZE))
ONES, COUNTS = {"recipe": (1, 1, 128)}, torch.tensor([128, 128], dtype=I32)
A, B, ROWS_OF_B = codes(SIZE, 256), codes(SIZE, 256, rows=128), codes(SIZE, 256)
X, W = bf16(SIZE, 64), bf16(SIZE, 64)
ADDED = torch.ones(D)
UP, NARROW = (bf16(256, SIZE), codes(256, SIZE)[0]), bf16(256, 64)
REFUSED = {
    "scales of other blocks": refused("fp8_gemm_nt", A, B, D, **ONES),
    "other codes": refused("fp8_gemm_nt", *[(A[0].to(torch.float8_e5m2), A[1])] * 2, D, **ONES),
    "codes of two kinds": refused("fp8_gemm_nt", (A[0].to(torch.float8_e5m2), A[1]), ROWS_OF_B, D, **ONES),
    "codes across k": refused("fp8_gemm_nt", (codes(256, SIZE)[0].T, A[1]), ROWS_OF_B, D, ADDED, **ONES),
    "another k": refused("fp8_gemm_nt", codes(SIZE, 128), ROWS_OF_B, D, **ONES),
    "an unaligned operand": refused("bf16_gemm_nt", bf16(SIZE, 65)[:, 1:], W, D, ADDED),
    "another dtype": refused("bf16_gemm_nt", X.half(), W.half(), D, ADDED),
    "k of 12": refused("bf16_gemm_nt", bf16(SIZE, 12), bf16(SIZE, 12), D, ADDED),
    "one group": refused("k_grouped_bf16_gemm_tn_contiguous", UP[0][:128], UP[0][:128], DS, [128], COUNTS[:1]),
    "too narrow a result": refused("k_grouped_bf16_gemm_tn_contiguous", NARROW, UP[0], DS, [128, 128], COUNTS),
    "sums of another dtype": refused("k_grouped_bf16_gemm_tn_contiguous", *[UP[0].half()] * 2, DS, [128, 128], COUNTS),
    "scales of other sums": refused(
        "k_grouped_fp8_gemm_tn_contiguous", (UP[1], ROWS[:1]), (UP[1], ROWS), DS, [128, 128], COUNTS
    ),
    "flat codes of another kind": refused(
        "k_grouped_fp8_gemm_nt_contiguous", *[(flat()[0].to(torch.float8_e5m2), ROWS.T)] * 2, DS, [128, 128], COUNTS
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_call_leaves_the_result_as_it_was(hopper, why) -> None:
    call, shape = REFUSED[why]
    d = torch.full(shape, 7.0)
    with pytest.raises((NotImplementedError, ValueError)):
        call(d)
    assert bool((d == 7).all())


TAKEN = {
    "rows": refused("fp8_gemm_nt", A, ROWS_OF_B, D, **ONES),
    "bf16": refused("bf16_gemm_nt", X, W, D, ADDED),
    "sums": refused("k_grouped_bf16_gemm_tn_contiguous", UP[0], UP[0], DS, [128, 128], COUNTS),
    "sums of codes": refused("k_grouped_fp8_gemm_tn_contiguous", *[(UP[1], ROWS)] * 2, DS, [128, 128], COUNTS),
    "sums of flat codes": refused("k_grouped_fp8_gemm_nt_contiguous", flat(), flat(), DS, [128, 128], COUNTS),
}


@pytest.mark.parametrize("what", TAKEN)
def test_so_does_one_on_another_arch(what) -> None:
    call, shape = TAKEN[what]
    d = torch.full(shape, 7.0)
    with pytest.raises(NotImplementedError, match="archs: sm_90, this is cpu"):
        call(d)
    assert bool((d == 7).all())


@pytest.mark.parametrize("what", TAKEN)
def test_calls_are_asked_for_once(hopper, monkeypatch, what) -> None:
    call, shape = TAKEN[what]
    asked: list[Any] = []
    takers = adding.takers
    monkeypatch.setattr(adding, "takers", lambda *given, **more: asked.append(given) or takers(*given, **more))
    monkeypatch.setattr(adding, "_taken", set())
    monkeypatch.setattr(dense, "multiply", lambda *given, **more: None)
    counts = []
    for _ in range(2):
        with nothing() if what == "bf16" else pytest.raises(NotImplementedError, match="this is cpu"):
            call(torch.full(shape, 7.0))
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_the_forms_that_were_taken_are_bounded(hopper, monkeypatch) -> None:
    monkeypatch.setattr(adding, "_taken", taken := set(range(adding.MOST_TAKEN)))
    adding.ask(opmux.linear, X, W, backend="deepgemm")
    assert len(taken) == 1


@pytest.mark.parametrize("what", ["sums", "sums of codes", "sums of flat codes"])
def test_index_data_that_the_policy_checks_is_refused_before_the_result_is_written(computed, what) -> None:
    name = {"sums": "bf16_gemm_tn", "sums of codes": "fp8_gemm_tn", "sums of flat codes": "fp8_gemm_nt"}[what]
    given = {"sums": UP[0], "sums of codes": (UP[1], ROWS), "sums of flat codes": flat()}[what]
    call, d = getattr(compat, f"k_grouped_{name}_contiguous"), torch.full(DS, 7.0)
    with opmux.policy.override(check=True):
        with pytest.raises(ValueError, match=r"weight_grad: `group_offsets` expected"):
            call(given, given, d, [128, 128], torch.tensor([128, 300], dtype=I32))
        assert bool((d == 7).all())
        call(given, given, d, [128, 128], COUNTS)
    call(given, given, wanted := torch.zeros(DS), [128, 128], COUNTS)
    assert torch.equal(d, wanted)


def test_a_result_in_the_memory_of_an_operand_is_refused_before_it_is_written(hopper) -> None:
    memory = torch.zeros(SIZE * SIZE, dtype=F32)
    d, x = memory.view(SIZE, SIZE), memory.view(FP8)[: SIZE * 256].view(SIZE, 256)
    with pytest.raises(NotImplementedError, match="this is cpu"):  # taken, by which its form is known
        compat.fp8_gemm_nt((x.clone(), A[1]), ROWS_OF_B, d, recipe=(1, 1, 128))
    d.fill_(7)
    with pytest.raises(ValueError, match=r"^scaled_linear_accumulate: `x` expected memory apart from `out`"):
        compat.fp8_gemm_nt((x, A[1]), ROWS_OF_B, d, recipe=(1, 1, 128))
    assert bool((d == 7).all())


def test_operands_of_bfloat16_in_the_memory_of_the_result_are_copied(computed) -> None:
    memory = torch.zeros(SIZE * SIZE, dtype=F32)
    d, x = memory.view(SIZE, SIZE), memory.view(BF16)[: SIZE * 64].view(SIZE, 64)
    x.copy_(X)
    compat.bf16_gemm_nt(x, W, d, ADDED)
    torch.testing.assert_close(d, X.float() @ W.float().T + 1)
