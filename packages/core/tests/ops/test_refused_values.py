"""Values that no caller means: sizes of 0 where a row or a head must have elements, and a scale that gives NaN."""

import math

import pytest
import torch

import opmux
from opmux.errors import InvalidArgument


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def offsets(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


COLUMN, HEAD = "a row has at least one column", "a head has at least one dim"
LENGTHS = {"max_seqlen_q": 3, "max_seqlen_k": 3}
PAGED = (offsets(0, 3), offsets(3), offsets(0)[None])
SLOTS = torch.arange(3)

EMPTY = [
    (opmux.rms_norm, (zeros(3, 0), zeros(0)), {}, f"`x` expected hidden > 0, got hidden = 0; {COLUMN}"),
    (opmux.rms_norm_backward, (zeros(3, 0), zeros(3, 0), zeros(0)), {}, "`grad_y` expected hidden > 0, got hidden = 0"),
    (opmux.add_rms_norm, (zeros(3, 0), zeros(3, 0), zeros(0)), {}, "`x` expected hidden > 0"),
    (opmux.add_rms_norm_, (zeros(3, 0), zeros(3, 0), zeros(0)), {}, "`x` expected hidden > 0"),
    (opmux.layer_norm, (zeros(3, 0), zeros(0)), {}, "`x` expected hidden > 0"),
    (opmux.add_layer_norm, (zeros(3, 0), zeros(3, 0), zeros(0)), {}, "`x` expected hidden > 0"),
    (opmux.silu_and_mul, (zeros(3, 0),), {}, f"`x` expected n > 0, got n = 0; {COLUMN}"),
    (opmux.gelu_mul, (zeros(3, 0), zeros(3, 0)), {}, f"`gate` expected n > 0, got n = 0; {COLUMN}"),
    (
        opmux.linear,
        (zeros(3, 0), zeros(4, 0)),
        {},
        "`w` expected n > 0 and k > 0, got n = 4, k = 0; a weight has at least one row and one column",
    ),
    (opmux.linear, (zeros(3, 4), zeros(0, 4)), {}, "`w` expected n > 0 and k > 0, got n = 0, k = 4"),
    (opmux.quantize, (zeros(3, 0),), {"dtype": torch.int8}, f"`x` expected k > 0, got k = 0; {COLUMN}"),
    (
        opmux.apply_rope,
        (zeros(3, 2, 0), zeros(3, 1, 0), zeros(3, 0), zeros(3, 0)),
        {},
        f"`q` expected head_dim > 0, got head_dim = 0; {HEAD}",
    ),
    (
        opmux.attention,
        (zeros(1, 3, 2, 0), zeros(1, 3, 2, 0), zeros(1, 3, 2, 8)),
        {},
        f"`q` expected head_dim > 0 and value_dim > 0, got head_dim = 0, value_dim = 8; {HEAD}",
    ),
    (
        opmux.attention_varlen_lse,
        (zeros(3, 2, 8), zeros(3, 2, 8), zeros(3, 2, 0), offsets(0, 3), offsets(0, 3)),
        LENGTHS,
        "`q` expected head_dim > 0 and value_dim > 0, got head_dim = 8, value_dim = 0",
    ),
    (
        opmux.paged_attention,
        (zeros(3, 2, 0), zeros(1, 16, 2, 0), zeros(1, 16, 2, 8), *PAGED),
        LENGTHS,
        "`q` expected head_dim > 0 and value_dim > 0, got head_dim = 0, value_dim = 8",
    ),
    (
        opmux.write_kv_cache,
        (zeros(3, 2, 0), zeros(3, 2, 8), zeros(1, 16, 2, 0), zeros(1, 16, 2, 8), SLOTS),
        {},
        "`k` expected head_dim > 0 and value_dim > 0, got head_dim = 0, value_dim = 8",
    ),
    (
        opmux.merge_attention_states,
        (zeros(3, 2, 0), zeros(2, 3), zeros(3, 2, 0), zeros(2, 3)),
        {},
        f"`out_a` expected value_dim > 0, got value_dim = 0; {HEAD}",
    ),
]


@pytest.mark.parametrize(
    ("op", "tensors", "options", "message"), EMPTY, ids=[f"{op.__name__}-{i}" for i, (op, *_) in enumerate(EMPTY)]
)
def test_a_row_or_a_head_without_elements_is_refused(op, tensors, options, message):
    for call in (op, getattr(torch.ops.opmux, op.__name__)):
        with pytest.raises(InvalidArgument) as refused:
            call(*tensors, **options)
        assert str(refused.value).startswith(f"{op.__name__}: {message}")


NONE_OF_THEM = [
    (opmux.rms_norm, (zeros(0, 8), zeros(8)), {}, (0, 8)),
    (opmux.silu_and_mul, (zeros(2, 0, 8),), {}, (2, 0, 4)),
    (opmux.linear, (zeros(0, 4), zeros(5, 4)), {}, (0, 5)),
    (opmux.attention, (zeros(0, 3, 2, 8), zeros(0, 3, 2, 8), zeros(0, 3, 2, 8)), {}, (0, 3, 2, 8)),
    (opmux.attention, (zeros(1, 0, 2, 8), zeros(1, 3, 2, 8), zeros(1, 3, 2, 8)), {}, (1, 0, 2, 8)),
    (opmux.attention, (zeros(1, 3, 2, 8), zeros(1, 0, 2, 8), zeros(1, 0, 2, 8)), {}, (1, 3, 2, 8)),
]


@pytest.mark.parametrize(("op", "tensors", "options", "shape"), NONE_OF_THEM)
def test_no_tokens_batches_queries_or_keys_are_valid(op, tensors, options, shape):
    assert op(*tensors, **options).shape == shape


ATTENTION = [
    (opmux.attention, (zeros(1, 3, 2, 8),) * 3, {}),
    (opmux.attention_lse, (zeros(1, 3, 2, 8),) * 3, {}),
    (opmux.attention_varlen, (*(zeros(3, 2, 8),) * 3, offsets(0, 3), offsets(0, 3)), LENGTHS),
    (opmux.paged_attention, (zeros(3, 2, 8), *(zeros(1, 16, 2, 8),) * 2, *PAGED), LENGTHS),
]


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("op", "tensors", "options"), ATTENTION)
def test_a_scale_that_is_not_finite_is_refused(op, tensors, options, scale):
    op(*tensors, **options)
    with pytest.raises(InvalidArgument) as refused:
        op(*tensors, scale=scale, **options)
    assert str(refused.value) == (
        f"{op.__name__}: `scale` expected scale is None or -3e38 < scale < 3e38, got scale = {scale!r}; "
        "the scale is a finite float32 number, or None for 1 / sqrt(head_dim)"
    )


@pytest.mark.parametrize("scale", [0.0, -0.5, 2])
def test_any_finite_scale_is_valid(scale):
    assert opmux.attention(*(zeros(1, 3, 2, 8),) * 3, scale=scale).shape == (1, 3, 2, 8)
