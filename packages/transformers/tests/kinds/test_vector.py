"""Plain linears in 16 bits: a single row is opmux's, everything else torch's as before."""

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples import deep_looks, ids, logits, model, reasons, train_alike
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional

import opmux
import opmux_transformers
from opmux_transformers import PagedCache, kinds, vector

LINEARS = 14
"""Of the small Llama, without its head."""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the path of a GPU with a backend here."""
    monkeypatch.setattr(vector, "DEVICES", ("cpu",))
    monkeypatch.setattr(kinds.vector, "has_kernel", lambda weight, bias: True)


def patched_pair(**changed: Any) -> tuple[Any, Any]:
    """A model in bfloat16, and a patched copy."""
    plain = model(dtype=torch.bfloat16)
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched, **changed)
    return plain, patched


def products(of: Any, *args: Any, **kwargs: Any) -> int:
    """How many products of a call are opmux's."""
    with opmux.trace() as trace:
        of(*args, **kwargs)
    return sum(row.calls for row in trace.rows if row.op == "linear")


def test_one_sequence_decodes_by_opmux_and_prompts_and_batches_by_torch() -> None:
    plain, patched = patched_pair()
    for batch, expected in ((1, LINEARS), (2, 0)):
        tokens = ids(8, batch)
        cache = PagedCache(patched)
        with torch.no_grad():
            assert products(patched, tokens[:, :7], past_key_values=cache) == 0
            assert products(patched, tokens[:, 7:], past_key_values=cache) == expected
        cache.crop(7)
        found = logits(patched, tokens[:, 7:], past_key_values=cache)
        torch.testing.assert_close(found[:, -1], logits(plain, tokens)[:, -1], rtol=5e-2, atol=5e-2)


def test_a_row_is_torchs_product() -> None:
    _, patched = patched_pair()
    linear = patched.model.layers[0].mlp.down_proj
    x = torch.randn(1, 1, linear.in_features, dtype=torch.bfloat16)
    with torch.no_grad():
        found = linear(x)
        assert products(linear, x) == 1
    assert found.shape == (1, 1, linear.out_features)
    torch.testing.assert_close(found, functional.linear(x, linear.weight), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_with_a_bias(dtype: torch.dtype) -> None:
    taken = nn.Sequential(nn.Linear(24, 40, dtype=dtype))
    plain = copy.deepcopy(taken)
    assert opmux_transformers.patch(taken).replaced("vector") == 1
    for shape in ((24,), (1, 24), (1, 1, 24)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad():
            assert products(taken, x) == 1
            torch.testing.assert_close(taken(x), plain(x), rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_wrong_and_empty_inputs_get_torchs_answers() -> None:
    taken = nn.ModuleList([nn.Linear(8, 4), nn.Linear(0, 4), nn.Linear(4, 0)]).to(torch.bfloat16)
    assert opmux_transformers.patch(taken).replaced("vector") == 1
    row = torch.ones(8, dtype=torch.bfloat16)
    with torch.no_grad():
        for wrong in (row[0], row[:7], row[None, :7]):
            with pytest.raises(RuntimeError):
                taken[0](wrong)
        assert taken[0](row[None, :0].expand(0, 0).reshape(0, 8)).shape == (0, 4)
        assert taken[1](row[:0]).shape == (4,)
        assert taken[2](row[None, :4]).shape == (1, 0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's forward mode
def test_gradients_autocast_subclasses_and_transforms_are_torchs() -> None:
    _, patched = patched_pair()
    linear = patched.model.layers[0].self_attn.q_proj
    x = torch.randn(1, linear.in_features, dtype=torch.bfloat16)
    assert products(linear, x) == 0  # gradients are recorded

    class Own(torch.Tensor):
        pass

    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert products(linear, x) == 0
        assert products(linear, x.as_subclass(Own)) == 0
        assert products(torch.vmap(linear), x[None]) == 0
        compiled = torch.compile(torch.vmap(linear), backend="aot_eager", fullgraph=True)
        assert products(compiled, x[None].expand(3, 1, -1)) == 0
        with forward_ad.dual_level():
            assert products(linear, forward_ad.make_dual(x, torch.ones_like(x))) == 0
        with pytest.raises(RuntimeError, match="same dtype"):
            linear(x.float())
        assert products(linear, x) == 1


def test_a_class_whose_forward_was_wrapped_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Linear.forward

    @functools.wraps(plain)
    def wrapped(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:
        return plain(self, input).neg()

    monkeypatch.setattr(nn.Linear, "forward", wrapped)
    report = opmux_transformers.patch(nn.Sequential(nn.Linear(8, 4, dtype=torch.bfloat16)))
    assert reasons(report, "vector") == {"0": "already patched: the forward of torch.nn.Linear was replaced"}


def test_hooks_and_a_class_that_is_replaced_later_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    _, patched = patched_pair()
    linear = patched.model.layers[0].self_attn.q_proj
    x = torch.randn(1, linear.in_features, dtype=torch.bfloat16)
    seen: list[Any] = []
    handle = linear.register_forward_hook(lambda *args: seen.append(args))
    with torch.no_grad():
        linear(x)
        handle.remove()
        monkeypatch.setattr(nn.Linear, "forward", lambda self, input: torch.zeros(3))
        assert linear(x).shape == (3,)
    assert len(seen) == 1


def test_what_is_left_and_why() -> None:
    taken = model(dtype=torch.bfloat16)
    mlp, attention = taken.model.layers[0].mlp, taken.model.layers[0].self_attn
    wide = taken.model.layers[1].mlp
    wide.down_proj = nn.Linear(8200, wide.down_proj.out_features, bias=False, dtype=torch.bfloat16)
    mlp.up_proj.forward = lambda x: x
    attention.q_proj.float()
    report = opmux_transformers.patch(taken, attention=False, gate=False)
    rows = [row.module for row in report.rows if row.kind == "vector"]
    assert "lm_head" not in rows
    assert "model.layers.0.self_attn.q_proj" not in rows
    assert "model.layers.1.mlp.down_proj" not in rows
    (path, why), *others = reasons(report, "vector").items()
    assert (path, others) == ("model.layers.0.mlp.up_proj", [])
    assert why.startswith("already patched: its forward was replaced by ")
    assert report.replaced("vector") == LINEARS - 3


def test_models_in_float32_and_other_options_have_none() -> None:
    assert "vector" not in opmux_transformers.patch(model()).counts()
    assert patched_pair(vector=False)[1].model.layers[0].mlp.up_proj.__dict__.get("forward") is None
    counts = opmux_transformers.patch(model(dtype=torch.bfloat16), quantize="fp8").counts()
    assert "vector" not in counts
    assert counts["quantize"]["replaced"] == LINEARS


def test_rows_that_the_reference_or_torchs_library_would_compute_stay_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert vector.DEVICES == ("cuda",)
    weight = torch.zeros(8, 16, dtype=torch.bfloat16)
    assert not kinds.vector.has_kernel(weight, None)
    monkeypatch.setattr(vector, "DEVICES", ("cpu",))
    assert not kinds.vector.has_kernel(weight, None)  # here only the reference computes it
    assert "vector" not in opmux_transformers.patch(model(dtype=torch.bfloat16)).counts()
    for name, expected in (("triton", True), ("triton:hopper", True), ("vendor:blas", False), ("reference", False)):
        chosen = SimpleNamespace(chosen=SimpleNamespace(name=name))
        monkeypatch.setattr(opmux, "explain", lambda *_, chosen=chosen: chosen)
        assert kinds.vector.has_kernel(weight, None) is expected


def test_unpatch_restores_the_model() -> None:
    patched = model(dtype=torch.bfloat16)
    before, result = deep_looks(patched), logits(patched, ids())
    report = opmux_transformers.patch(patched)
    assert report.replaced("vector") == LINEARS
    opmux_transformers.unpatch(patched)
    assert deep_looks(patched) == before
    assert torch.equal(logits(patched, ids()), result)


def test_training_and_recomputed_gates_are_as_before() -> None:
    plain = model()
    patched = copy.deepcopy(plain)
    opmux_transformers.patch(patched)
    vector_only = copy.deepcopy(plain)
    for of in (plain, patched, vector_only):
        of.to(torch.bfloat16)
    opmux_transformers.patch(
        vector_only, norm=False, gate=False, rope=False, attention=False, residual=False, cache=False, loss=False
    )
    assert opmux_transformers.report(vector_only).replaced("vector") == LINEARS
    train_alike(vector_only, plain)

    def saved(of: Any) -> int:
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        of.train()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            of(ids(), labels=ids(), use_cache=False)
        return sum(sizes.values())

    usual, again = (copy.deepcopy(plain) for _ in range(2))
    opmux_transformers.patch(usual)
    opmux_transformers.patch(again, recompute=True)
    assert saved(again) < saved(usual)


def test_a_copy_computes_with_its_own_weights_and_quantize_takes_patched_linears() -> None:
    _, patched = patched_pair()
    made = copy.deepcopy(patched)
    linear = made.model.layers[0].mlp.up_proj
    x = torch.randn(1, linear.in_features, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight.zero_()
        assert not linear(x).any()
        assert patched.model.layers[0].mlp.up_proj(x).any()
    assert len(opmux.nn.quantize_(made, "fp8").converted()) == LINEARS


def test_a_compiled_step_has_the_op() -> None:
    _, patched = patched_pair()
    linear = patched.model.layers[0].mlp.up_proj
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    x = torch.randn(1, 1, linear.in_features, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), functional.linear(x, linear.weight), rtol=1e-2, atol=1e-2)
        assert products(compiled, x) == 1
        assert products(compiled, x.expand(1, 5, -1).contiguous()) == 0
        rows = x[0].repeat(7, 1)
        torch._dynamo.decorators.mark_unbacked(rows, 0)
        assert products(torch.compile(linear, backend="aot_eager", fullgraph=True), rows) == 0
