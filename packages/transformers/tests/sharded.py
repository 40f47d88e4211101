"""One rank of `test_sharding`: ``python -m sharded RANK RANKS FOLDER``.

Its models hold a part of every parameter, and train what whole ones train: one is quantised, and one computes the
results of its gates again in the backward pass.
"""

import gc
import sys
from typing import Any

import torch
from samples import ids, logits, model
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import opmux
import opmux_transformers


def trained(of: Any) -> list[Tensor]:
    """The losses of some steps, and the logits after them."""
    optimizer = torch.optim.SGD(of.parameters(), lr=0.5)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = of.train()(ids(), labels=ids(), use_cache=False).loss
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, logits(of.eval(), ids())]


def compare(ranks: int, **options: Any) -> None:
    """Train a sharded model and a whole one: every rank gets the same tokens, so that the averages are the same."""
    whole, part = model(), model()
    for of in (whole, part):
        opmux_transformers.patch(of, **options)
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in part.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(part, mesh=mesh)
    with opmux.trace() as trace:
        sharded = trained(part)
    for own, other in zip(sharded, trained(whole), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3)
    if "recompute" in options:
        calls = {row.op: row.calls for row in trace.rows}
        assert calls["silu_mul"] == 2 * calls["silu_mul_backward"] + 2, calls  # in each layer, and for the logits


def work(rank: int, ranks: int, folder: str) -> None:
    """Compare as one of several processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        compare(ranks, quantize="fp8")
        compare(ranks, recompute=True)
    finally:
        # Sharded models hold the group's threads, in cycles: where they outlive it, a process may abort at its end.
        gc.collect()
        distributed.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
