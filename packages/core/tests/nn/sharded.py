"""One rank of `test_sharding`: ``python -m nn.sharded RANK RANKS FOLDER``.

Its models hold a part of every parameter, and train what a whole one trains.
"""

import gc
import sys
from typing import Any

import torch
from nn.blocks import HIDDEN, Model, inputs, randomise
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def steps(model: torch.nn.Module, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Two steps of training; the losses of the parts given, averaged."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.stack([model(part).float().square().mean() for part in parts]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def sharded(from_meta: bool, whole: Model, **options: Any) -> Model:
    """The same weights, sharded layer by layer."""
    if from_meta:
        with torch.device("meta"):
            model = Model()
    else:
        model = Model()
        model.load_state_dict(whole.state_dict())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if from_meta:
        model.to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                full = whole.get_parameter(name)
                part = torch.distributed.tensor.distribute_tensor(full.detach(), mesh, parameter.placements)
                parameter.copy_(part)
    return model


def compare(rank: int, ranks: int) -> None:
    """Train sharded models and a whole one; all losses and parameters must agree."""
    whole = Model()
    randomise(whole)
    parts = list(inputs(ranks, 2, 5, HIDDEN))
    models = {"plain": sharded(False, whole), "from meta": sharded(True, whole)}
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    low = sharded(False, whole, mp_policy=mixed)
    low_loss = steps(low, [parts[rank]])[0]
    expected = steps(whole, parts)
    for name, model in models.items():
        losses = torch.stack(steps(model, [parts[rank]]))
        dist.all_reduce(losses)
        torch.testing.assert_close(losses / ranks, torch.stack(expected), rtol=1e-4, atol=1e-5, msg=name)
        for key, wanted in whole.named_parameters():
            got = model.get_parameter(key).full_tensor()
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=f"{name}: {key}")
    dist.all_reduce(low_loss)
    torch.testing.assert_close(low_loss / ranks, expected[0], rtol=0.05, atol=0.05)


def work(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        compare(rank, ranks)
    finally:
        # Sharded models hold the group's threads, in cycles: where they outlive it, a process may abort at its end.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
