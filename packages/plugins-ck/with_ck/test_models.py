"""Every instance that the layers of models get, of all families: built, and its machine code checked.

A row of the table is a model, a column a number of tokens: decoding alone and together, a short and a long prompt.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from building import check_kernel, entry_of
from torch import Tensor

from opmux.plugin import registered_ops, takers
from opmux.testing.model_shapes import MODELS
from opmux_ck.building.calls import instances_of
from opmux_ck.building.instances import Instance
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of

ARCH = "gfx942"
BF16, FNUZ = torch.bfloat16, torch.float8_e4m3fnuz
TOKENS = (1, 64, 512, 4096)
Call = tuple[str, tuple[Tensor | None, ...], dict[str, Any]]


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A tensor of which a choice needs the shape alone."""
    return torch.empty(shape, dtype=dtype, device="meta")


def calls(model: Any, tokens: int) -> Iterator[Call]:
    """What a layer calls: norms, projections in bfloat16 and in fp8, attention."""
    hidden, heads = model.hidden, model.heads * model.head_dim
    x, gain, scale = meta(tokens, hidden), meta(hidden), torch.float32
    yield "rms_norm", (x, gain), {}
    yield "add_rms_norm", (x, x, gain), {}
    for block in ((1, -1), (1, 128)):
        yield "add_rms_norm_quantize", (x, x, gain), {"dtype": FNUZ, "block": block}
    projections = (
        (heads + 2 * model.kv_heads * model.head_dim, hidden),
        (hidden, heads),
        (2 * model.intermediate, hidden),
        (hidden, model.intermediate),
    )
    for n, k in projections:
        yield "linear", (meta(tokens, k), meta(n, k), None), {}
        codes, out = (meta(tokens, k, dtype=FNUZ), meta(n, k, dtype=FNUZ)), {"out_dtype": BF16}
        yield "scaled_linear", (*codes, meta(tokens, 1, dtype=scale), meta(n, 1, dtype=scale), None), out
        blocks = meta(tokens, -(-k // 128), dtype=scale), meta(-(-n // 128), -(-k // 128), dtype=scale)
        yield "scaled_linear", (*codes, *blocks, None), out
    q, kv = meta(1, tokens, model.heads, model.head_dim), meta(1, max(tokens, 512), model.kv_heads, model.head_dim)
    yield "attention", (q, kv, kv), {"causal": True}


def chosen() -> dict[str, Instance]:
    """The instances, by name; a call that the backend refuses has none."""
    found: dict[str, Instance] = {}
    for model in MODELS.values():
        for tokens in TOKENS:
            for op, tensors, options in calls(model, tokens):
                for taker in takers(registered_ops()[op], *tensors, arch=ARCH, backend="ck", **options):
                    found |= {one.name: one for one in instances_of(op, taker.call, taker.config())}
    return dict(sorted(found.items()))


INSTANCES = chosen()


@pytest.mark.parametrize("name", INSTANCES)
def test_its_machine_code(name) -> None:
    """Matrix instructions where there is a product, besides what every kernel is checked for."""
    instance = INSTANCES[name]
    check_kernel(instance)
    _, code = Program(entry_of(instance).code).code
    assert any(shape_of(line.name) for line in code) == ("norm" not in instance.op)


def test_every_family_is_among_them() -> None:
    """The table is not empty of any."""
    assert {one.op for one in INSTANCES.values()} == {
        "rms_norm", "add_rms_norm", "add_rms_norm_quantize", "linear", "scaled_linear", "attention"
    }  # fmt: skip
