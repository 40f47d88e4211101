"""torch.export: programs that hold the registered ops, run, take other sizes, and survive being saved."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_bridge.samples import ALL, BLOCK_OPS, Block, Sample, sample

from opmux.errors import InvalidArgument

# torch's own, while it traces and saves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),
]


class Calling(nn.Module):
    """A module that makes one call."""

    def __init__(self, call: Sample) -> None:
        super().__init__()
        self.public, self.options = call.op.public, call.options

    def forward(self, *tensors: Tensor | None) -> Any:
        return self.public(*tensors, **self.options)


def opmux_ops(program: torch.export.ExportedProgram) -> list[str]:
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [t.split(".")[1] for t in targets if t.startswith("opmux.")]


@pytest.mark.parametrize("name", ALL)
def test_every_op(name: str) -> None:
    call, eager = sample(name), sample(name)
    program = torch.export.export(Calling(call), call.tensors)
    assert opmux_ops(program) == [name]
    given, expected = program.module()(*call.tensors), eager()
    torch.testing.assert_close(given, expected, rtol=0, atol=0)
    torch.testing.assert_close(call.tensors, eager.tensors, rtol=0, atol=0)


@pytest.fixture(scope="module", params=[False, True], ids=["traced", "by dynamo"])
def program(request: pytest.FixtureRequest) -> torch.export.ExportedProgram:
    """The block, for any batch and any sequence that the rope tables cover."""
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("seq", min=2, max=32)}
    return torch.export.export(Block(), (torch.randn(2, 5, 32),), dynamic_shapes=(dims,), strict=request.param)


@pytest.mark.parametrize("sizes", [(2, 5), (3, 5), (7, 32), (1, 2)])
def test_a_model_takes_other_sizes(program: torch.export.ExportedProgram, sizes: tuple[int, int]) -> None:
    x = torch.randn(*sizes, 32)
    torch.testing.assert_close(program.module()(x), Block()(x), rtol=0, atol=0)


def test_a_model_holds_nothing_of_the_references(program: torch.export.ExportedProgram) -> None:
    assert set(opmux_ops(program)) == BLOCK_OPS
    beside = {str(n.target) for n in program.graph.nodes if n.op == "call_function"} - {
        str(getattr(torch.ops.opmux, op).default) for op in BLOCK_OPS
    }
    computing = {"aten.rsqrt.default", "aten.mean.dim", "aten.softmax.int", "aten.exp.default", "aten.mm.default"}
    assert not beside & computing


def test_a_model_decomposed_for_inference(program: torch.export.ExportedProgram) -> None:
    decomposed = program.run_decompositions()
    assert set(opmux_ops(decomposed)) == BLOCK_OPS
    x = torch.randn(3, 6, 32)
    torch.testing.assert_close(decomposed.module()(x), Block()(x), rtol=0, atol=0)


def test_a_saved_program(program: torch.export.ExportedProgram) -> None:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = torch.randn(3, 6, 32)
    torch.testing.assert_close(torch.export.load(file).module()(x), Block()(x), rtol=0, atol=0)


def test_an_exported_model_can_be_trained(program: torch.export.ExportedProgram) -> None:
    x = torch.randn(2, 5, 32)
    module, eager = program.module(), Block()
    module(x).square().sum().backward()
    eager(x).square().sum().backward()
    grads = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    expected = {name: parameter.grad for name, parameter in eager.named_parameters()}
    torch.testing.assert_close(grads, expected, rtol=1e-5, atol=1e-5)


def test_a_wrong_shape_is_told_while_exporting() -> None:
    call = sample("rms_norm")
    with pytest.raises(InvalidArgument, match=r"rms_norm: `weight` expected shape \[hidden\] = \[8\], got shape \[7\]"):
        torch.export.export(Calling(call), (torch.randn(5, 8), torch.randn(7)))
