"""Spaces: every config of an implementation fits its schema, on every arch that it names, and there are few of them."""

import pytest
import torch

from opmux.declared.configs import make_config
from opmux.plugin import Implementation, known_arch, takers
from opmux.tuner.candidates import entrants_of, written
from opmux.tuner.drawing import DISTRIBUTIONS, draw
from opmux_triton import families
from opmux_triton.archs import AMD

MOST = 160
"""Configs of one implementation for one call: each is compiled."""

OPS = sorted({record.op for record in families.records() if record.space is not None})
ARCHS = ("sm_80", "sm_89", "sm_90", "gfx90a", "gfx942", "gfx1100")


def test_all_but_what_has_no_config_have_a_space() -> None:
    without = {record.op for record in families.records() if record.space is None}
    scales = {"convert_scale", "pack_scale", "unpack_scale"}
    assert without <= scales | {"merge_attention_states", "merge_attention_states_backward"}


@pytest.mark.parametrize("op", OPS)
def test_every_config_of_a_space_fits_its_schema_on_every_arch(op: str) -> None:
    from opmux.plugin import registered_ops

    function = registered_ops()[op]
    assert op in DISTRIBUTIONS
    for arch in ARCHS:
        for dtype in (torch.bfloat16, torch.float32):
            for point in draw([op], 3, 0, dtype=dtype):
                for taker in takers(function, *point.tensors().values(), arch=arch, **point.all_options):
                    record: Implementation = taker.implementation
                    if record.space is None:
                        continue
                    texts = [written(make_config(record, config)) for config in taker.space()]
                    assert 2 <= len(set(texts)) <= MOST, f"{record.full_name} on {arch}: {len(set(texts))}"
                    entrants = list(entrants_of(taker))
                    assert entrants[0].candidate.config == written(taker.heuristic()), "the heuristic's comes first"
                    assert known_arch(arch).name in (*AMD, "sm_80", "sm_89", "sm_90")
