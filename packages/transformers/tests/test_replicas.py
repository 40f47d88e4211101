"""Replicas of ``torch.nn.DataParallel``."""

import pytest
import torch
from samples import CLOSE, ids, logits, pair
from torch import nn

import opmux
import opmux_transformers
from opmux_transformers.kinds.quantize import KEPT


def replica_of(of: nn.Module, change) -> nn.Module:
    """A replica as torch.nn.DataParallel makes it, with other values for its parameters."""
    modules = list(of.modules())
    copies = {id(m): m._replicate_for_data_parallel() for m in modules}
    for module in modules:
        replica = copies[id(module)]
        for name, child in module._modules.items():
            setattr(replica, name, None if child is None else copies[id(child)])
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else change(parameter.detach()))
    return copies[id(of)]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_replicas_compute_with_their_own_parameters(name: str) -> None:
    plain, patched = pair(name)
    opmux_transformers.patch(patched)
    replica = replica_of(patched, lambda parameter: parameter * 1.5)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
        with opmux.trace() as trace:
            got = replica(ids()).logits
    torch.testing.assert_close(got, logits(plain, ids()), **CLOSE)
    assert {"attention", "add_rms_norm", "apply_rope"} <= {row.op for row in trace.rows}


def test_a_replica_computes_the_loss_from_its_own_head() -> None:
    plain, patched = pair()
    opmux_transformers.patch(patched)
    replica = replica_of(patched.train(), lambda parameter: parameter * 1.5)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(1.5)
    outputs = replica(ids(), labels=ids())
    torch.testing.assert_close(outputs.loss, plain.train()(ids(), labels=ids()).loss, **CLOSE)
    assert "logits" not in outputs


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize("name", ["qwen2", "mixtral"])
def test_replicas_quantise_their_own_weights_and_keep_their_biases(name: str, codes: str) -> None:
    """The biases of qwen2 are large: a replica that lost them would be far off."""
    plain, patched = pair(name)
    for of in (plain, patched):
        for path, parameter in of.named_parameters():
            if path.endswith("bias"):
                parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    opmux_transformers.patch(patched, quantize=codes)
    own = logits(patched, ids())
    replica = replica_of(patched, lambda parameter: parameter * 1.5)
    with torch.no_grad():
        got = replica(ids()).logits
        for parameter in plain.parameters():
            parameter.mul_(1.5)
    opmux_transformers.patch(plain, quantize=codes)
    torch.testing.assert_close(got, logits(plain, ids()), **CLOSE)
    kept = [one for of in (patched, replica) for m in of.modules() for k, one in vars(m).items() if k.startswith(KEPT)]
    assert len({id(one) for one in kept}) == len(kept) == 2 * {"qwen2": 14, "mixtral": 2 * (4 + 2)}[name]
    assert torch.equal(logits(patched, ids()), own)
