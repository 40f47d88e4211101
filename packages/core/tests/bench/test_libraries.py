"""Peers from other packages: called with the arguments they take, and there only where they are installed.

The packages here are stand-ins on the path, which compute by the references and keep what they were called with.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import opmux
from opmux.bench.libraries import library_peers, package_of

FLASH = """
import opmux
from opmux.bench import formulations

calls = []

def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(None, None), softcap=0.0):
    calls.append((softmax_scale, causal, window_size, softcap))
    if q.requires_grad:
        return formulations.attention(q, k, v, causal=causal), None
    window = tuple(-1 if side is None else side for side in window_size)
    options = {"scale": softmax_scale, "causal": causal, "window": window, "softcap": softcap}
    return opmux.attention.reference(q, k, v, **options), None

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None,
                           causal=False, window_size=(None, None), softcap=0.0):
    calls.append((max_seqlen_q, max_seqlen_k))
    return opmux.attention_varlen.reference(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, causal=causal
    )
"""
QUACK = "import opmux\n\ndef rmsnorm(x, weight, eps):\n    return opmux.rms_norm.reference(x, weight, eps=eps)\n"
GEMM = "import torch\n\ndef gemm(a, b, bias=None):\n    return a @ b if bias is None else torch.addmm(bias, a, b)\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in (
        ("flash_attn/__init__.py", ""),
        ("flash_attn/cute/__init__.py", FLASH),
        ("quack/__init__.py", QUACK),
        ("quack/gemm_interface.py", GEMM),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [m for m in sys.modules if m.partition(".")[0] in ("flash_attn", "quack")]:
        del sys.modules[name]


SCORING = {"scale": None, "causal": True, "window": (4, -1), "softcap": 0.0}


def qkv() -> dict[str, torch.Tensor]:
    return {"q": torch.randn(2, 8, 4, 16), "k": torch.randn(2, 8, 2, 16), "v": torch.randn(2, 8, 2, 16)}


@pytest.mark.usefixtures("installed")
def test_attention_by_flash_attention_4() -> None:
    given = {**qkv(), "sinks": None, **SCORING}
    peers = library_peers("attention", given)
    assert list(peers) == ["FlashAttention 4"]
    found = peers["FlashAttention 4"]()()
    torch.testing.assert_close(found, opmux.attention.reference(*list(given.values())[:3], **SCORING))
    assert sys.modules["flash_attn.cute"].calls == [(None, True, (4, None), 0.0)]


@pytest.mark.usefixtures("installed")
def test_ragged_attention_by_flash_attention_4() -> None:
    starts = torch.tensor([0, 3, 8], dtype=torch.int32)
    q, k, v = (tensor[0] for tensor in qkv().values())
    sizes = {"max_seqlen_q": 5, "max_seqlen_k": 5}
    options = {**SCORING, "window": (-1, -1)}
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts, "cu_seqlens_k": starts, **sizes, **options}
    found = library_peers("attention_varlen", given)["FlashAttention 4"]()()
    torch.testing.assert_close(found, opmux.attention_varlen.reference(q, k, v, starts, starts, **sizes, causal=True))
    assert sys.modules["flash_attn.cute"].calls == [(5, 5)]


@pytest.mark.usefixtures("installed")
def test_the_gradient_of_attention_is_that_of_flash_attention_4() -> None:
    options = {**SCORING, "window": (-1, -1)}
    tensors = qkv()
    out, lse = opmux.attention_lse.reference(*tensors.values(), **options)
    grad = torch.randn_like(out)
    found = library_peers("attention_backward", {"grad_out": grad, **tensors, **options})["FlashAttention 4"]()()
    expected = opmux.attention_backward.reference(grad, *tensors.values(), out, lse, **options)
    torch.testing.assert_close(found, expected[:3])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_by_quack(offset: float) -> None:
    given = {"x": torch.randn(3, 8), "weight": torch.randn(8), "eps": 1e-5, "weight_offset": offset}
    found = library_peers("rms_norm", given)["Quack"]()()
    expected = opmux.rms_norm.reference(given["x"], given["weight"], eps=1e-5, weight_offset=offset)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("bias", [None, torch.ones(6)])
def test_a_product_by_quack(bias: torch.Tensor | None) -> None:
    given = {"x": torch.randn(2, 3, 8), "w": torch.randn(6, 8), "bias": bias}
    found = library_peers("linear", given)["Quack"]()()
    torch.testing.assert_close(found, torch.nn.functional.linear(given["x"], given["w"], bias))


@pytest.mark.usefixtures("installed")
def test_an_op_that_a_package_does_not_have_has_no_such_peer() -> None:
    assert library_peers("silu_mul", {}) == {}


def test_nothing_is_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert library_peers("attention", {**qkv(), **SCORING}) == {}


def test_a_package_whose_import_fails_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert library_peers("attention", {**qkv(), **SCORING}) == {}


@pytest.mark.usefixtures("installed")
def test_a_peer_is_listed_with_its_own_package() -> None:
    assert package_of("FlashAttention 4") == "flash-attn-4"
    assert package_of("Quack") == "quack-kernels"
    assert package_of("torch eager") is None
