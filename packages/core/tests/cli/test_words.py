"""``x=bf16[4096,8192]`` and its like."""

import pytest
import torch

import opmux
from opmux.arch import parse_arch
from opmux.callpath.op import OPS
from opmux.cli import words
from opmux.dtypes import SHORT_NAMES
from opmux.errors import InvalidArgument

GFX942 = parse_arch("gfx942")
CPU = parse_arch("cpu")


def read(op: str, *given: str, arch=CPU):
    return words.read_call(getattr(opmux, op).op, given, arch)


@pytest.mark.parametrize(("short", "name"), SHORT_NAMES.items())
def test_every_short_name_is_its_dtype(short: str, name: str) -> None:
    assert words.read_dtype("explain", "x", short, CPU) == getattr(torch, name)
    assert words.read_dtype("explain", "x", name, CPU) == getattr(torch, name)


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [("gfx942", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn), ("sm_90", torch.float8_e4m3fn)],
)
def test_fp8_is_the_archs_own_flavour(arch: str, dtype: torch.dtype) -> None:
    assert words.read_dtype("explain", "x", "fp8", parse_arch(arch)) == dtype


def test_tensors_are_made_on_the_meta_device() -> None:
    x = read("rms_norm", "x=bf16[2, 3,8]", "weight=f32[8]")["x"]
    assert (x.device.type, x.dtype, tuple(x.shape)) == ("meta", torch.bfloat16, (2, 3, 8))


@pytest.mark.parametrize(
    ("op", "word", "value"),
    [
        ("attention", "causal=true", True),
        ("attention", "causal=False", False),
        ("attention", "causal=1", True),
        ("attention", "window=-1,0", (-1, 0)),
        ("attention", "window=(4,4)", (4, 4)),
        ("attention", "scale=none", None),
        ("attention", "scale=0.5", 0.5),
        ("attention", "softcap=30", 30.0),
        ("attention", "sinks=none", None),
        ("attention_varlen", "max_seqlen_q=7", 7),
        ("gelu_mul", "approximate=tanh", "tanh"),
        ("linear_backward", "output_mask=true,false,true", (True, False, True)),
        ("quantize", "dtype=e4m3fn", torch.float8_e4m3fn),
        ("quantize", "dtype=int8", torch.int8),
    ],
)
def test_options_are_read_by_their_kind(op: str, word: str, value: object) -> None:
    signature = getattr(opmux, op).op.signature
    required = [words.example(t).partition("=")[0] + "=f32[8]" for t in signature.required]
    required += [f"{o.name}=1" for o in signature.options if o.required and o.kind == "int"]
    required += ["dtype=i8"] if op == "quantize" else []
    name = word.partition("=")[0]
    given = read(op, word, *(w for w in required if w.partition("=")[0] != name))
    assert given[name] == value
    assert type(given[name]) is type(value)


FULL = ("x=bf16[4,8]", "weight=bf16[8]")
WRONG = {
    ("x=bf16[4,8]", "weight"): (
        "explain: `weight` expected name=value, as x=bf16[tokens,hidden] or eps=1e-5; "
        "the arguments of rms_norm are x, weight, eps, weight_offset"
    ),
    ("x=",): (
        "explain: `x=` expected name=value, as x=bf16[tokens,hidden] or eps=1e-5; "
        "the arguments of rms_norm are x, weight, eps, weight_offset"
    ),
    (*FULL, "epsilon=1"): (
        "explain: `epsilon` expected an argument of rms_norm (x, weight, eps, weight_offset), got 'epsilon=1'; "
        "did you mean eps? see `opmux ops`"
    ),
    (*FULL, "x=f32[1]"): "explain: `x` expected one value, got a second one in 'x=f32[1]'; drop one",
    ("x=bf16[4,8]",): (
        "explain: `weight` of rms_norm expected a value, got none; add weight=bf16[hidden], with numbers for the dims"
    ),
    (): (
        "explain: `x` of rms_norm expected a value, got none; "
        "add x=bf16[tokens,hidden] weight=bf16[hidden], with numbers for the dims"
    ),
    ("x=bf16[99999999999999999999,8]", "weight=bf16[8]"): (
        "explain: `x` of rms_norm expected sizes of a tensor that torch can hold, "
        "got 'bf16[99999999999999999999,8]'; make them smaller"
    ),
    ("x=bf16", "weight=bf16[8]"): (
        "explain: `x` of rms_norm expected DTYPE[SIZE,...], as x=bf16[tokens,hidden] with numbers for the dims, "
        "got 'bf16'; quote it where the shell reads brackets"
    ),
    ("x=bf16[4,,8]", "weight=bf16[8]"): (
        "explain: `x` of rms_norm expected DTYPE[SIZE,...], as x=bf16[tokens,hidden] with numbers for the dims, "
        "got 'bf16[4,,8]'; quote it where the shell reads brackets"
    ),
    ("x=bf16[-4,8]", "weight=bf16[8]"): (
        "explain: `x` of rms_norm expected DTYPE[SIZE,...], as x=bf16[tokens,hidden] with numbers for the dims, "
        "got 'bf16[-4,8]'; quote it where the shell reads brackets"
    ),
    ("x=b16[4,8]", "weight=bf16[8]"): (
        "explain: `x` expected a dtype (bf16, f16, f32, f64, i8, i32, i64, e4m3fn, e4m3fnuz, e5m2, e5m2fnuz, e8m0, "
        "fp8), got 'b16'; did you mean bf16? fp8 is e4m3fn on cpu"
    ),
    (*FULL, "eps=small"): "explain: `eps` of rms_norm expected a number, got 'small'; the default is 1e-06",
}


@pytest.mark.parametrize("given", WRONG)
def test_a_word_that_cannot_be_read_is_explained(given: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read("rms_norm", *given)
    assert str(raised.value) == WRONG[given]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("causal=maybe", "`causal` of attention expected true or false, got 'maybe'; the default is False"),
        ("window=left", "`window` of attention expected whole numbers with commas between, as -1,0, got 'left'; "),
    ],
)
def test_an_option_of_another_kind_is_explained(word: str, message: str) -> None:
    tensors = ("q=bf16[1,2,4,8]", "k=bf16[1,2,2,8]", "v=bf16[1,2,2,8]")
    with pytest.raises(InvalidArgument) as raised:
        read("attention", *tensors, word)
    assert message in str(raised.value)


def test_a_required_option_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgument) as raised:
        read("quantize", "x=bf16[4,128]")
    assert str(raised.value) == (
        "explain: `dtype` of quantize expected a value, got none; add dtype=..., with numbers for the dims"
    )


def test_examples_can_be_made_for_every_tensor() -> None:
    for op in OPS.values():
        for tensor in op.signature.tensors:
            assert words.example(tensor).startswith(f"{tensor.name}=")


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "mps"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        words.read_device("demo", name)
    assert str(raised.value).startswith("demo: `--device` expected one of cpu")
    assert str(raised.value).endswith(f"got {name!r}; see `opmux doctor`")


def test_a_device_that_is_here_is_taken() -> None:
    assert words.read_device("demo", "cpu") == torch.device("cpu")
    assert words.read_device("demo", None) is None
