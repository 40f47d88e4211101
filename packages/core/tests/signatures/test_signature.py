"""Dim expressions and signatures as data."""

import re
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from opmux.callpath.op import OPS
from opmux.dtypes import Int32, Real
from opmux.signatures.dims import Affine, CeilQuotient, OptionValue, parse_dim, parse_shape
from opmux.signatures.output_dtypes import Accumulated, Chosen
from opmux.signatures.signature import read_signature


@pytest.mark.parametrize(
    ("text", "parsed", "value"),
    [
        ("k", Affine("k"), 10),
        ("2*k", Affine("k", 2), 20),
        ("k+1", Affine("k", 1, 1), 11),
        ("2*k+3", Affine("k", 2, 3), 23),
        ("128", Affine(None, 0, 128), 128),
        ("{size}", OptionValue("size"), 7),
        ("{block[1]}", OptionValue("block", 1), 4),
        ("k/3", CeilQuotient(Affine("k"), Affine(None, 0, 3)), 4),
        ("k/{block[1]}", CeilQuotient(Affine("k"), OptionValue("block", 1)), 3),
        ("k/{block[0]}", CeilQuotient(Affine("k"), OptionValue("block", 0)), 1),
    ],
)
def test_a_dim_is_parsed_and_its_source_computes_its_value(text, parsed, value):
    names = {"k": 10, "size": 7, "block": (-1, 4)}
    assert parse_dim(text) == parsed
    assert parsed.value({"k": 10}, names) == value
    assert eval(parsed.source(), {}, names) == value


@pytest.mark.parametrize("text", ["K", "k*2", "k-", "a/b/c", "{}", "k//2", "2k", ""])
def test_what_the_grammar_lacks_is_refused(text):
    with pytest.raises(ValueError, match="is not a name, an integer"):
        parse_dim(text)


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_a_quotient_is_rounded_up(size, block):
    dim = parse_dim("k/{b}")
    assert dim.value({"k": size}, {"b": block}) == -(-size // block)


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1, 1), (500, 1)])
def test_a_block_of_minus_one_is_the_whole_dim(size, blocks):
    dim = parse_dim("k/{b}")
    assert dim.value({"k": size}, {"b": -1}) == blocks
    assert eval(dim.source(), {}, {"k": size, "b": -1}) == blocks


def test_a_star_dim_is_any_number_of_leading_dims():
    shape = parse_shape("*tokens 2*n")
    assert shape.star == "tokens"
    assert shape.value({"tokens": (3, 4), "n": 5}, {}) == (3, 4, 10)
    assert shape.value({"tokens": (), "n": 5}, {}) == (10,)


def read(fn, **declaration):
    import inspect

    return read_signature(fn.__name__, inspect.signature(fn), **declaration)


def test_a_later_wave_fits_the_machinery():
    """Grouped, quantised ops: ceil shapes, tuple and dtype options, device-side offsets, several options of a kind."""

    def grouped(
        x: Real[Tensor, "m k"],
        w: Real[Tensor, "groups n k"],
        group_offsets: Int32[Tensor, "groups+1"],
        x_scale: Real[Tensor, "m k/128"] | None = None,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        block: tuple[int, int] = (128, 128),
        mode: Literal["fast", "exact"] = "fast",
        limit: float | None = None,
    ) -> Real[Tensor, "m n"]: ...

    signature = read(grouped, out_dtype={"out": "out_dtype"})
    assert signature.binders == {"m": "x", "k": "x", "groups": "w", "n": "w"}
    assert [o.kind for o in signature.options] == ["dtype", "ints", "str", "float"]
    options = {"out_dtype": torch.float32, "block": (128, 128), "mode": "fast", "limit": None}
    tensors = {
        "x": torch.empty(5, 200),
        "w": torch.empty(3, 7, 200),
        "group_offsets": torch.empty(4, dtype=torch.int32),
        "x_scale": torch.empty(5, 2),
    }
    from opmux.signatures.validation import check_call

    dims, _ = check_call(signature, tensors, options)
    assert signature.output_shapes(dims, options) == ((5, 7),)
    assert signature.output_dtypes(tensors, options) == (torch.float32,)


def test_outputs_know_their_dtypes_shapes_and_strides():
    signature = OPS["quantize"].signature
    x = torch.randn(6, 256)
    options = {"dtype": torch.int8, "block": (1, 128), "scale_major": "m"}
    dims = {"batch": (), "m": 6, "k": 256}
    q, scale = signature.empty_outputs({"x": x}, dims, options)
    assert (q.dtype, q.shape) == (torch.int8, (6, 256))
    assert (scale.dtype, scale.shape, scale.stride()) == (torch.float32, (6, 2), (1, 8))
    attention = OPS["attention_lse"].signature
    assert attention.outputs[1].dtype == Accumulated("q")


def no_tensor(*, eps: float = 1.0) -> Real[Tensor, "k"]: ...
def unbound(x: Real[Tensor, "k"]) -> Real[Tensor, "n"]: ...
def shadow(x: Real[Tensor, "eps"], *, eps: float = 1.0) -> Real[Tensor, "eps"]: ...
def keyword_tensor(*, x: Real[Tensor, "k"]) -> Real[Tensor, "k"]: ...
def odd_option(x: Real[Tensor, "k"], *, eps: dict = {}) -> Real[Tensor, "k"]: ...  # noqa: B006
def required_optional(x: Real[Tensor, "k"], y: Real[Tensor, "k"] | None) -> Real[Tensor, "k"]: ...


def choosing(
    x: Real[Tensor, "*tokens n"], bias: Real[Tensor, "n"] | None = None, *, kept: torch.dtype | None = None,
    always: torch.dtype = torch.float32, eps: float = 1.0,
) -> Real[Tensor, "*tokens n"]: ...  # fmt: skip


def reducible(
    x: Real[Tensor, "*tokens n"], *, eps: float = 1e-6, reduction: Literal["mean", "none"] = "mean"
) -> Real[Tensor, "*tokens"]: ...


@pytest.mark.parametrize(("reduction", "shape"), [("mean", ()), ("none", (2, 3))])
def test_an_option_reduces_an_output_to_one_number(reduction, shape):
    made = read(reducible, reduced={"out": "reduction"})
    assert made.output_shapes({"tokens": (2, 3), "n": 4}, {"eps": 0.0, "reduction": reduction}) == (shape,)


@pytest.mark.parametrize(
    ("dtype", "asked", "found"),
    [
        (torch.bfloat16, None, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float64, None, torch.float64),
    ],
)
def test_an_option_chooses_the_dtype_of_an_output(dtype, asked, found):
    made = read(choosing, out_dtype={"out": Chosen("kept", "x")})
    assert made.chosen == (Chosen("kept", "x"),)
    tensors = {"x": torch.empty(2, 3, dtype=dtype), "bias": None}
    assert made.output_dtypes(tensors, {"kept": asked, "eps": 1.0}) == (found,)


def test_the_dtype_that_an_output_has_anyway_is_not_chosen():
    made = read(choosing, out_dtype={"out": Chosen("kept", "x")})
    dtypes = {"x": torch.bfloat16}
    assert made.settled({"kept": torch.bfloat16, "eps": None}, dtypes) == {"eps": None}
    assert made.settled({"kept": None}, dtypes) == {}
    assert made.settled({"kept": torch.float32}, dtypes) == {"kept": torch.float32}


NO_CHOICE = "chooses the dtype of an output, so it must be an option `torch.dtype | None = None`"


@pytest.mark.parametrize(
    ("fn", "declaration", "message"),
    [
        (choosing, {"out_dtype": {"out": Chosen("eps", "x")}}, re.escape(f"choosing: `eps` {NO_CHOICE}")),
        (choosing, {"out_dtype": {"out": Chosen("always", "x")}}, re.escape(f"choosing: `always` {NO_CHOICE}")),
        (choosing, {"out_dtype": {"out": Chosen("other", "x")}}, re.escape(f"choosing: `other` {NO_CHOICE}")),
        (choosing, {"out_dtype": {"out": Chosen("kept", "bias")}}, "choosing: `bias` is not a required tensor, as"),
        (no_tensor, {}, "no_tensor: the first argument must be a required tensor"),
        (unbound, {}, "unbound: no required tensor binds dim `n` of 'n'"),
        (shadow, {}, r"shadow: \['eps'\] name both a dim and an argument"),
        (keyword_tensor, {}, "keyword_tensor: tensor `x` must be positional"),
        (odd_option, {}, "option `eps` has an annotation that a torch schema cannot express"),
        (required_optional, {}, r"required_optional: optional tensor `y` must be `\.\.\. \| None = None`"),
        (unbound, {"outputs": ("a", "b")}, "unbound: 2 output names for 1 returned tensors"),
        (unbound, {"out_dtype": {"y": "x"}}, r"unbound: out_dtype, out_strides or reduced names no output: \['y'\]"),
        (
            reducible,
            {"reduced": {"out": "eps"}},
            "reducible: `out` is reduced by `eps`, which must be an option of choices with 'none' among them",
        ),
    ],
)
def test_a_definition_that_cannot_be_carried_is_refused(fn, declaration, message):
    with pytest.raises(TypeError, match=message):
        read(fn, **declaration)
