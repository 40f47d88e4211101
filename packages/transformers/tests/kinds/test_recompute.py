"""The output projection of a gated MLP that does not keep its input: the same gradients, bit by bit, in less memory."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from samples import Adapted, agree, ids, looks, model, reasons
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

import opmux
import opmux_transformers
from opmux.errors import GradientRefused
from opmux_transformers.recomputed import projected

LAYERS, BATCH, SEQ, INTERMEDIATE = 2, 2, 12, 96
SEPARATE, PACKED = "silu_mul", "silu_and_mul"
FAMILIES = {"llama": SEPARATE, "gemma3_text": "gelu_mul", "phi3": PACKED}


def patched(plain: Any, **options: Any) -> Any:
    """A copy that keeps its gates' results, or does not."""
    made = copy.deepcopy(plain)
    opmux_transformers.patch(made, **options)
    return made


def step(of: Any) -> dict[str, Tensor]:
    """The gradients of a step."""
    of.train()
    of.zero_grad()
    of(ids(SEQ, BATCH), labels=ids(SEQ, BATCH), use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in of.named_parameters() if p.grad is not None}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Both have the same gradients, bit by bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def kept(compute: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """The bytes that autograd keeps for the gradients of a result, each storage once; and the result."""
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compute()
    return sum(held.values()), result


def calls(of: Any) -> Counter[str]:
    """How often a step calls each op."""
    with opmux.trace() as trace:
        step(of)
    return Counter({row.op: row.calls for row in trace.rows})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_the_same_bit_by_bit_and_less_is_kept(name: str, dtype: torch.dtype) -> None:
    plain = model(name, dtype)
    own, without = patched(plain), patched(plain, recompute=True)
    for of in (own, without):
        of.train()
    sizes = [kept(lambda of=of: of(ids(SEQ, BATCH), labels=ids(SEQ, BATCH), use_cache=False).loss)[0]
             for of in (own, without)]  # fmt: skip
    assert sizes[0] - sizes[1] == LAYERS * BATCH * SEQ * INTERMEDIATE * dtype.itemsize
    same(step(without), step(own))
    again = calls(without) - calls(own)
    assert again == Counter({FAMILIES[name]: LAYERS})


def test_it_is_not_the_default_and_has_rows_only_on_request() -> None:
    plain = model()
    assert "recompute" not in opmux_transformers.patch(copy.deepcopy(plain)).counts()
    of = copy.deepcopy(plain)
    report = opmux_transformers.patch(of, recompute=True)
    assert report.counts()["recompute"] == {"replaced": LAYERS, "left": 0}
    assert "silu_mul (again in backward)" in str(report)


def test_without_its_gate_a_module_is_not_asked() -> None:
    report = opmux_transformers.patch(model(), recompute=True, gate=False)
    assert "recompute" not in report.counts()


def test_unpatch_puts_everything_back() -> None:
    of = model()
    before = looks(of)
    opmux_transformers.patch(of, recompute=True)
    step(of)
    of.eval()
    opmux_transformers.unpatch(of)
    assert looks(of) == before


def test_a_copy_recomputes_too() -> None:
    of = patched(model(), recompute=True)
    assert calls(copy.deepcopy(of))["silu_mul"] == 2 * LAYERS


def test_another_linear_is_left_with_the_reason() -> None:
    plain = model()
    plain.model.layers[0].mlp.down_proj = Adapted(plain.model.layers[0].mlp.down_proj)
    of = copy.deepcopy(plain)
    report = opmux_transformers.patch(of, recompute=True)
    assert reasons(report, "recompute") == {
        "model.layers.0.mlp": "its down_proj is of class Adapted, which may keep its input for other reasons"
    }
    assert report.replaced("recompute") == 1
    assert calls(of)["silu_mul"] == LAYERS + 1


def test_an_adapter_after_the_patch_is_called() -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    for of in (own, without):
        torch.manual_seed(2)
        of.requires_grad_(False)
        for layer in of.model.layers:
            for name in ("gate_proj", "up_proj", "down_proj"):
                setattr(layer.mlp, name, Adapted(getattr(layer.mlp, name)))
                getattr(layer.mlp, name).drop.p = 0.0
    same(step(without), step(own))
    assert calls(without)["silu_mul"] == LAYERS


@pytest.mark.parametrize("frozen", ["down_proj", "gate_proj", "up_proj"])
def test_a_frozen_linear_gets_no_gradient(frozen: str) -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    for of in (own, without):
        for layer in of.model.layers:
            layer.mlp.get_submodule(frozen).requires_grad_(False)
    same(step(without), step(own))
    # a frozen projection keeps nothing, so nothing is computed again
    assert calls(without)["silu_mul"] == LAYERS * (1 if frozen == "down_proj" else 2)


def test_a_gate_without_a_gradient_is_not_computed_again() -> None:
    of = patched(model(), recompute=True)
    of.requires_grad_(False)
    of.model.layers[1].mlp.down_proj.requires_grad_(True)
    assert calls(of)["silu_mul"] == LAYERS


def test_nothing_is_recorded_without_gradients() -> None:
    plain = model()
    of = patched(plain, recompute=True)
    agree(of, plain)
    with opmux.trace() as trace, torch.no_grad():
        of(ids())
    assert {row.op: row.calls for row in trace.rows}["silu_mul"] == LAYERS


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    for of in (own, without):
        of.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    same(step(without), step(own))


def test_tensors_that_are_kept_on_the_cpu_give_the_same_gradients() -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    with torch.autograd.graph.save_on_cpu():
        same(step(without), step(own))


def test_autocast_keeps_the_product() -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(step(without), step(own))
        assert calls(without)["silu_mul"] == LAYERS


def test_a_compiled_model_keeps_what_its_compiler_decides() -> None:
    own = patched(model(), recompute=True)
    eager = step(own)
    own.zero_grad()
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    compiled(ids(SEQ, BATCH), labels=ids(SEQ, BATCH), use_cache=False).loss.backward()
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, eager[name], rtol=1e-4, atol=2e-6)


def test_hooks_for_all_modules_see_the_projection() -> None:
    of = patched(model(), recompute=True)
    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        step(of)
    finally:
        hook.remove()
    assert {id(layer.mlp.down_proj) for layer in of.model.layers} <= {id(module) for module in seen}


def test_a_hook_on_the_projection_sees_its_input() -> None:
    of = patched(model(), recompute=True)
    seen = []
    of.model.layers[0].mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    assert calls(of)["silu_mul"] == LAYERS + 1
    assert seen == [(BATCH, SEQ, INTERMEDIATE)]


class Pair:
    """A gate, an up projection and a linear, with what they make by either way."""

    def __init__(self, bias: bool = False, packed: bool = False, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(1)
        self.name = PACKED if packed else SEPARATE
        widths = (16,) if packed else (8, 8)
        self.parts = [torch.randn(2, 3, n, dtype=dtype, requires_grad=True) for n in widths]
        self.linear = nn.Linear(8, 5, bias=bias, dtype=dtype)

    def own(self) -> Tensor:
        return self.linear(getattr(opmux, self.name)(*self.parts))

    def without(self) -> Tensor:
        made = projected(self.name, {}, self.parts, self.linear)
        assert made is not None
        return made

    def leaves(self) -> list[Tensor]:
        return [*self.parts, *self.linear.parameters()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_both_layouts(bias: bool, packed: bool, dtype: torch.dtype) -> None:
    of = Pair(bias, packed, dtype)
    for weights in (torch.randn(2, 3, 5).to(dtype), torch.ones((), dtype=dtype).expand(2, 3, 5)):
        results = of.own(), of.without()
        assert torch.equal(*results)
        own, without = (torch.autograd.grad(result, of.leaves(), weights) for result in results)
        assert all(map(torch.equal, own, without))


def test_gradients_agree_with_differences() -> None:
    of = Pair(bias=True)
    assert torch.autograd.gradcheck(lambda *_: of.without(), of.leaves())


@pytest.mark.parametrize("packed", [False, True])
def test_the_result_of_the_gate_is_freed(packed: bool) -> None:
    of = Pair(packed=packed)
    sizes = [kept(way)[0] for way in (of.own, of.without)]
    assert sizes[0] - sizes[1] == 2 * 3 * 8 * 8


def test_a_graph_that_is_kept_can_be_used_twice() -> None:
    of = Pair()
    result = of.without().sum()
    first = torch.autograd.grad(result, of.leaves(), retain_graph=True)
    second = torch.autograd.grad(result, of.leaves())
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(result, of.leaves())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_change_in_place_is_detected(which: int) -> None:
    of = Pair()
    result = of.without().sum()
    with torch.no_grad():
        of.leaves()[which].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_second_order_gradients_are_those_of_the_ops() -> None:
    of = Pair()
    seen = []
    for way in (of.own, of.without):
        (first,) = torch.autograd.grad(way().square().sum(), [of.linear.weight], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [of.linear.weight])
        seen.append(second)
    torch.testing.assert_close(seen[1], seen[0])
    for way in (of.own, of.without):
        (first,) = torch.autograd.grad(way().square().sum(), [of.parts[0]], create_graph=True)
        with pytest.raises(GradientRefused, match="silu_mul: second-order gradients are not supported"):
            torch.autograd.grad(first.square().sum(), [of.parts[0]])


def test_transforms_of_functions_take_the_plain_way() -> None:
    of = patched(model(), recompute=True)
    expected = step(of)
    held = {name: p.detach() for name, p in of.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        given = {"labels": ids(SEQ, BATCH), "use_cache": False}
        return functional_call(of, parameters, (ids(SEQ, BATCH),), given).loss

    found = torch.func.grad(loss)(held)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda of: of.linear.weight.requires_grad_(False), "the projection is frozen"),
        (lambda of: [part.requires_grad_(False) for part in of.parts], "the gate has no gradient"),
        (lambda of: of.linear.to(torch.float32), "another dtype"),
        (lambda of: of.linear.register_forward_hook(lambda *_: None), "a hook"),
        (lambda of: setattr(of, "parts", [part[0, 0] for part in of.parts]), "one row"),
        (lambda of: setattr(of.linear, "forward", of.linear.forward), "a forward of its own"),
    ],
)
def test_other_calls_are_left_to_the_plain_way(change: Callable[[Pair], Any], why: str) -> None:
    of = Pair()
    change(of)
    assert projected(of.name, {}, of.parts, of.linear) is None, why


def test_steps_of_an_optimiser_are_the_same() -> None:
    plain = model()
    own, without = patched(plain), patched(plain, recompute=True)
    for of in (own, without):
        optimiser = torch.optim.AdamW(of.parameters(), lr=1e-2)
        for _ in range(3):
            step(of)
            optimiser.step()
    for one, other in zip(own.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)
