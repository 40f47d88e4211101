"""Losses on a GPU: against float64 at a real vocabulary's size, and the memory that chunks save."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opmux
from opmux.plugin import registered_ops, takers
from opmux_triton.aot.build import compile_launch
from opmux_triton.launch import recording
from opmux_triton.loss import fused_targets
from opmux_triton.loss.configs import FusedConfig, ProductConfig, RowsConfig

CONFIG = FusedConfig(
    4, 256, 512, RowsConfig(8192, 16), ProductConfig(num_warps=8, num_stages=3, block_m=128, block_n=256, block_k=64)
)


@pytest.mark.parametrize("tokens", [1, 255, 256, 1000, 2048, 8192, 32768, 100_000])
@pytest.mark.parametrize("vocab", [32, 32_000, 128_256, 262_144])
def test_a_chunk_is_a_part_of_the_tokens(tokens: int, vocab: int) -> None:
    """At most a quarter of them, unless these are fewer than a product needs; and no more than half a GiB of logits."""
    step = CONFIG.tokens(tokens, vocab, 2)
    assert 1 <= step <= tokens
    assert step <= max(256, -(-tokens // 4) + 127)
    assert step <= 256 or step * vocab * 2 <= (512 << 20) + 128 * vocab * 2


@pytest.mark.parametrize(
    ("vocab", "dtype", "rows"),
    [(50_257, torch.bfloat16, 50_264), (50_257, torch.float32, 50_257), (128_256, torch.bfloat16, 128_256)],
)
def test_the_weight_of_rows_that_are_not_aligned_is_copied(vocab: int, dtype: torch.dtype, rows: int) -> None:
    weight = torch.ones(vocab, 2, dtype=dtype)
    aligned = fused_targets._aligned(weight)
    assert aligned.shape == (rows, 2)
    assert (aligned is weight) == (rows == vocab)
    assert torch.equal(aligned[:vocab], weight)
    assert not aligned[vocab:].any()


@pytest.mark.long
def test_interpreted_losses_agree_with_the_references(interpret: Callable[[str], None]) -> None:
    interpret("loss/interpreted_losses.py")


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_gradients_of_the_loss_in_float64_compile(arch: str) -> None:
    """Unlike the interpreter, the compiler refuses a value whose dtype changes in a branch."""
    x, target = torch.empty(8, 32, device="meta"), torch.empty(8, dtype=torch.int64, device="meta")
    grad = torch.empty(8, dtype=torch.float64, device="meta")
    op = registered_ops()["fused_linear_cross_entropy_backward"]
    found = takers(op, grad, x, torch.empty_like(x), target, arch=arch)
    taker = next(t for t in found if t.implementation.backend == "triton")
    config = taker.heuristic()
    with recording(arch) as recorded, torch.no_grad():
        taker.bound(config)(*taker.call.tensors.values(), **taker.call.options)
    of_losses = [
        one for one in recorded.launches if any(getattr(a, "dtype", None) == grad.dtype for a in one.arguments)
    ]
    assert of_losses
    for launch in of_losses:
        compile_launch(launch, arch)


def rows_and_weight(tokens: int, hidden: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(tokens, hidden, generator=generator, device="cuda").to(dtype)
    weight = (torch.randn(vocab, hidden, generator=generator, device="cuda") * 3 / hidden**0.5).to(dtype)
    target = torch.randint(vocab, (tokens,), generator=generator, device="cuda")
    target[::7] = -100
    return x.requires_grad_(), weight.requires_grad_(), target


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_several_chunks_of_a_real_vocabulary(dtype: torch.dtype, reduction: str) -> None:
    """The error of a gradient is that of 16-bit logits and of their 16-bit gradients, not of a sum in 16 bits."""
    x, weight, target = rows_and_weight(1500, 512, 50_257, dtype)
    with opmux.trace() as trace:
        loss = opmux.fused_linear_cross_entropy(x, weight, target, reduction=reduction, backend="triton")
        grad = torch.randn_like(loss)
        loss.backward(grad)
    assert {r.backend.partition(":")[0] for r in trace.rows if "cross_entropy" in r.op} == {"triton"}
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    exact = F.cross_entropy(wide[0] @ wide[1].T, target, reduction=reduction)
    exact.backward(grad.double())
    close = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(loss.double(), exact, rtol=close, atol=close)
    for mine, theirs in zip((x.grad, weight.grad), (wide[0].grad, wide[1].grad), strict=True):
        assert mine is not None
        assert theirs is not None
        apart = torch.linalg.vector_norm(mine.double() - theirs) / torch.linalg.vector_norm(theirs)
        assert apart < (1e-5 if dtype == torch.float32 else 1.5e-2)


def gradients_by(
    x: Tensor, weight: Tensor, target: Tensor, config: FusedConfig, mask: tuple[bool, ...] = (True, True, True)
) -> tuple[Tensor, ...]:
    """The loss and the gradients of the sum, in a config."""
    options: dict[str, Any] = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 0.0, "softcap": 0.0}
    return fused_targets.fused_linear_cross_entropy_gradients(
        x.detach(), weight.detach(), target, reduction="sum", output_mask=mask, config=config, **options
    )


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [100, 1500], ids=["one chunk", "several"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cublas_adds_what_the_kernel_adds(dtype: torch.dtype, tokens: int) -> None:
    """Both sum in float32; they differ where a sum rounds to the next number of 16 bits."""
    given = rows_and_weight(tokens, 512, 50_257, dtype)
    kernel = gradients_by(*given, CONFIG)
    blas = gradients_by(*given, replace(CONFIG, by_blas=True))
    assert torch.equal(blas[0], kernel[0])
    assert torch.equal(blas[1], kernel[1])
    assert blas[2].dtype == dtype
    torch.testing.assert_close(blas[2], kernel[2], rtol=2**-7, atol=1e-4)
    apart = torch.linalg.vector_norm(blas[2].double() - kernel[2].double())
    assert apart < 1e-3 * torch.linalg.vector_norm(kernel[2].double())
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gradients_by(*given, replace(CONFIG, by_blas=True))[2], kernel[2])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("chunks", [1, 3])
def test_cublas_is_given_the_sums_to_add_to(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products that torch has on GPUs only, by its own names and arguments."""
    seen: list[str] = []

    def mm(one: Tensor, other: Tensor, out_dtype: torch.dtype) -> Tensor:
        seen.append("first")
        return (one.double() @ other.double()).to(out_dtype)

    def addmm(sums: Tensor, one: Tensor, other: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
        assert sums is out
        assert out.dtype is out_dtype is torch.float32
        seen.append("added")
        return out.add_((one.double() @ other.double()).float())

    monkeypatch.setattr(fused_targets, "adds_by_blas", lambda x: True)
    monkeypatch.setattr(fused_targets.torch, "mm", mm)
    monkeypatch.setattr(fused_targets.torch, "addmm", addmm)
    monkeypatch.setattr(fused_targets._Walk, "_replace", lambda *_: None)
    config = replace(CONFIG, parts=chunks, least=1, by_blas=True)
    x, weight = torch.randn(384, 8).bfloat16(), torch.randn(24, 8).bfloat16()
    target = torch.zeros(384, dtype=torch.int64)
    grad_weight = gradients_by(x, weight, target, config, (False, False, True))[2]
    logits = opmux.linear(x, weight)
    assert seen == ["first"] + ["added"] * (chunks - 1)
    assert grad_weight.dtype is torch.bfloat16
    torch.testing.assert_close(grad_weight.double(), logits.double().T @ x.double(), rtol=2**-8, atol=1e-3)


def test_cublas_adds_on_gpus_only() -> None:
    assert not fused_targets.adds_by_blas(torch.zeros(1, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_rows_longer_than_every_block() -> None:
    logits = 4 * torch.randn(64, 128_256, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(128_256, (64,), device="cuda")
    leaf = logits.clone().requires_grad_()
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-4, "softcap": 30.0}
    loss = opmux.cross_entropy(leaf, target, **options, backend="triton")
    loss.backward()
    wide = logits.double().requires_grad_()
    exact = opmux.cross_entropy.reference(wide, target, **options)
    exact.backward()
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, wide.grad.to(torch.bfloat16), rtol=1e-2, atol=1e-8)


@pytest.mark.gpu
def test_no_more_memory_than_chunks_and_gradients_need() -> None:
    tokens, hidden, vocab = 8192, 2048, 128_256
    x, weight, target = rows_and_weight(tokens, hidden, vocab, torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    opmux.fused_linear_cross_entropy(x, weight, target, backend="triton").backward()
    used = torch.cuda.max_memory_allocated() - before
    sums, chunk = 4 * vocab * hidden, 2 * vocab * tokens // 4
    assert used < sums + chunk + 2 * vocab * hidden // 4 + (256 << 20)
    assert used < 2 * tokens * vocab, "less than the logits alone would take"


@pytest.mark.gpu
def test_a_training_step_in_a_graph() -> None:
    """Targets may change between replays: how many are ignored is counted on the device."""
    x, weight, target = rows_and_weight(700, 256, 10_000, torch.bfloat16)

    def gradients() -> tuple[Tensor, ...]:
        loss = opmux.fused_linear_cross_entropy(x, weight, target, backend="triton")
        # A loss that kept its graph would keep nodes of the capturing stream: torch warns of them at the next backward.
        return loss.detach(), *torch.autograd.grad(loss, (x, weight))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = gradients()
    target[:350] = -100
    graph.replay()
    for mine, theirs in zip(held, gradients(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.gpu
def test_targets_out_of_range_read_nothing() -> None:
    """Run under a memory checker; here the loss of the other tokens is right."""
    logits = torch.randn(3, 1000, device="cuda")
    target = torch.tensor([1, 10**12, -5], device="cuda")
    losses = opmux.cross_entropy(logits, target, reduction="none", backend="triton")
    torch.testing.assert_close(losses[:1], F.cross_entropy(logits[:1], target[:1], reduction="none"))
