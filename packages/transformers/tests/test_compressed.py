"""Models of the real compressed-tensors: its linears, its hook, and what it keeps for itself."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed import args, compressed, hooks, loaded, rounded, scheme, token
from compressed_tensors.compressors import ModelCompressor
from packaging.version import Version
from quantised import WIDE, calls_of
from safetensors.torch import load_file
from samples import deep_looks, generated, ids, logits, model, ops_of, reasons
from torch import nn

import opmux_transformers

OTHERS = ("norm", "gate", "rope", "attention", "residual", "cache", "loss")
STAYS = "quantised: it computes as before"
FLIPS = 5e-3
"""What rounding may add where norms differ by their last bits: a value between two codes gets the other one."""
WAITS = "compressed-tensors would decompress the model at its first call: its hook waits until unpatch"


def static(type: str = "int") -> Any:
    """One scale for all values of an input, found beforehand."""
    return args(type, strategy="tensor", dynamic=False)


def blocks(type: str = "int") -> tuple[Any, Any]:
    """Weights in blocks of 128x128, inputs in groups of 128."""
    inputs = args(type, strategy="group", group_size=128, dynamic=True)
    return args(type, strategy="block", block_structure=[128, 128]), inputs


FORMS: dict[str, tuple[Any, Any, str]] = {
    "int8 channel, token": (args(), token(), "quantize, scaled_linear (token)"),
    "int8 channel, static": (args(), static(), "static_quantize, scaled_linear (static)"),
    "int8 blocks": (*blocks(), "quantize, scaled_linear (block)"),
    "fp8 channel, token": (args("float"), token("float"), "quantize, scaled_linear (token)"),
    "fp8 tensor, token": (args("float", strategy="tensor"), token("float"), "quantize, scaled_linear (token)"),
    "fp8 tensor, static": (
        args("float", strategy="tensor"),
        static("float"),
        "static_quantize, scaled_linear (static)",
    ),
    "fp8 blocks": (*blocks("float"), "quantize, scaled_linear (block)"),
}


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative distance of two results."""
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("form", FORMS)
def test_what_the_library_computes(form: str) -> None:
    weights, inputs, op = FORMS[form]
    plain = model(**WIDE)
    made = compressed(plain, scheme(weights, inputs))
    library, unrounded = copy.deepcopy(made), rounded(plain, scheme(weights, None))
    before, saved = deep_looks(made), {name: t.clone() for name, t in made.state_dict().items()}
    report = opmux_transformers.patch(made)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert {row.op for row in report.rows if row.kind == "linear"} == {op}
    assert not any(report.left(kind) for kind in OTHERS)
    assert report.notes[0] == WAITS
    assert hooks(made) == []
    found, expected, exact = (logits(of, ids()) for of in (made, library, unrounded))
    if form in ("fp8 channel, token", "fp8 tensor, token", "fp8 tensor, static"):
        assert apart(found, expected) < 1e-5
    # The library rounds a row of int8 by 1/127.5 of its largest magnitude, opmux by 1/127; codes may differ by one.
    assert apart(found, exact) < 1.1 * apart(expected, exact)
    assert "scaled_linear" in ops_of(made)
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor.view(torch.uint8), saved[name].view(torch.uint8))
    opmux_transformers.unpatch(made)
    assert deep_looks(made) == before
    assert hooks(made) == ["ct_decompress_hook"]
    assert torch.equal(logits(made, ids()), expected)
    assert hooks(made) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_checkpoint(tmp_path: Path, dtype: torch.dtype) -> None:
    how = scheme(args("float"), token("float"))
    plain = model(dtype=dtype, **WIDE)
    made = loaded(plain, tmp_path, how, dtype=dtype)
    exact = logits(rounded(plain, scheme(args("float"), None)), ids())
    report = opmux_transformers.patch(made)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert not any(report.left(kind) for kind in OTHERS)
    assert made.model.layers[0].mlp.gate_proj.weight_scale.dtype == dtype
    found, tokens = logits(made, ids()), generated(made, ids(4))
    assert torch.equal(tokens[:, :4], ids(4))
    assert made.model.layers[0].mlp.gate_proj.weight.dtype == torch.float8_e4m3fn
    opmux_transformers.unpatch(made)
    expected = logits(made, ids())
    assert apart(found, exact) < 1.1 * apart(expected, exact)


def test_what_is_saved_is_what_was_loaded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    made = loaded(model(**WIDE), first, scheme(args("float"), token("float")), dtype=torch.float32)
    opmux_transformers.patch(made)
    expected = logits(made, ids())
    made.save_pretrained(second)
    stored, again = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert stored.keys() == again.keys()
    assert all(torch.equal(t.view(torch.uint8), again[name].view(torch.uint8)) for name, t in stored.items())
    opmux_transformers.patch("llama")
    try:
        other = transformers.AutoModelForCausalLM.from_pretrained(second, dtype=torch.float32)
    finally:
        opmux_transformers.unpatch("llama")
    assert opmux_transformers.report(other).counts()["linear"] == {"replaced": 14, "left": 0}
    assert torch.equal(logits(other, ids()), expected)


def test_a_part_of_a_model_whose_hook_runs_computes_what_the_library_does() -> None:
    made = compressed(model(**WIDE), scheme(args("float"), token("float")))
    expected = logits(copy.deepcopy(made), ids())
    report = opmux_transformers.patch(made.model)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert hooks(made) == ["ct_decompress_hook"]  # not the patch's to take: the model around it has it
    assert apart(logits(made, ids()), expected) < FLIPS
    assert made.model.layers[0].mlp.gate_proj.weight.dtype == torch.float32


def test_scales_of_16_bits_are_kept_in_float32_and_follow_their_own() -> None:
    plain = model(dtype=torch.bfloat16, **WIDE)
    made, unrounded = (
        compressed(plain, scheme(args("float"), token("float"))),
        rounded(plain, scheme(args("float"), None)),
    )
    before = deep_looks(made)
    opmux_transformers.patch(made)
    ran = calls_of(made, lambda of: logits(of, ids()))
    assert ran["scaled_linear"] == 2 * 4  # queries, keys and values have one product; gate and up have another
    first = logits(made, ids())
    state = {name: t * 2 if name.endswith("up_proj.weight_scale") else t for name, t in made.state_dict().items()}
    other = copy.deepcopy(made)
    for of in (made, other):
        of.load_state_dict(state)
    changed = logits(made, ids())
    assert torch.equal(changed, logits(other, ids()))
    rounding = apart(first, logits(unrounded, ids()))
    assert apart(changed, first) > 2 * rounding
    made.load_state_dict({name: t / 2 if name.endswith("up_proj.weight_scale") else t for name, t in state.items()})
    assert apart(logits(made, ids()), first) < 0.5 * rounding  # gate and up have a product each by now
    opmux_transformers.patch(made)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert apart(logits(compiled, ids()), first) < 0.5 * rounding
    opmux_transformers.unpatch(made)
    layers = made.model.layers
    assert all(vars(m).keys() == before[f"model.layers.{path}"][1].keys() for path, m in layers.named_modules() if path)


def without_hooks(of: Any) -> None:
    """Take the library's hook from a model."""
    ModelCompressor().remove_decompression_hook(of)


def switched_off(of: Any) -> None:
    of.model.layers[0].mlp.up_proj.quantization_enabled = False


LOADS_NUMBERS = Version(transformers.__version__) >= Version("5.23")
REMEDIES = {
    True: "load it with CompressedTensorsConfig(dequantize=True) to have the others replaced",
    False: "transformers 5.23 can load it with CompressedTensorsConfig(dequantize=True) to have the others replaced",
}
W4 = args(bits=4, strategy="group", group_size=128)
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "4 bits": (W4, None, "its weight has 4 bits"),
    "4 bits, rounded input": (args(bits=4), token(), "its weight has 4 bits"),
    "asymmetric weights": (args(symmetric=False), token(), "its weight has zero points (an asymmetric scheme)"),
    "groups of weights": (
        args(strategy="group", group_size=128), token(), "its weight has scales of groups of 128, not of channels",
    ),
    "weights alone": (args("float"), None, "its input is not quantised: it multiplies in 16 bits"),
    "asymmetric inputs": (
        args(), args(strategy="token", dynamic=True, symmetric=False),
        "its input has zero points (an asymmetric scheme)",
    ),
    "two kinds of codes": (args("float"), token(), "its input is rounded to int8, and its weight is float8"),
    "whole inputs": (
        args(), args(strategy="tensor", dynamic=True),
        "its input has dynamic scales of the strategy 'tensor', not of tokens or groups of 128",
    ),
    "small groups of inputs": (
        args(), args(strategy="group", group_size=64, dynamic=True),
        "its input has dynamic scales of groups of 64, not of tokens or groups of 128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_schemes_that_opmux_does_not_have(name: str) -> None:
    weights, inputs, reason = REFUSED[name]
    made = compressed(model(**WIDE), scheme(weights, inputs))
    library = copy.deepcopy(made)
    report = opmux_transformers.patch(made)
    assert set(reasons(report, "linear").values()) == {f"{STAYS}: {reason}"}
    assert report.counts()["linear"] == {"replaced": 0, "left": 14}
    waiting = "it calls linears that are compressed, which compute nothing before the model's first call"
    for kind in ("rope", "attention", "residual"):
        assert set(reasons(report, kind).values()) == {waiting}
    assert hooks(made) == ["ct_decompress_hook"]
    assert (
        "compressed-tensors decompresses the model at its first call, and wraps all of its modules then:"
        f" {REMEDIES[LOADS_NUMBERS]}"
    ) in report.notes
    assert apart(logits(made, ids()), logits(library, ids())) < FLIPS


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_a_model_of_a_refused_scheme_is_replaced_where_it_is_loaded_as_numbers(tmp_path: Path) -> None:
    made = loaded(model(**WIDE), tmp_path, scheme(W4, None), dtype=torch.float32)
    expected = logits(made, ids())
    as_numbers = transformers.CompressedTensorsConfig(dequantize=True)
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, quantization_config=as_numbers
    )
    report = opmux_transformers.patch(other.eval())
    assert bool(report.left("norm")) != LOADS_NUMBERS
    if LOADS_NUMBERS:
        assert "linear" not in report.counts()
        assert not report.left()
    assert (logits(other, ids()) - expected).norm() < 1e-5 * expected.norm()


def test_a_quantised_head() -> None:
    made = compressed(model(**WIDE), scheme(args("float"), token("float")), ignore=[])
    library = copy.deepcopy(made)
    report = opmux_transformers.patch(made)
    assert report.counts()["linear"] == {"replaced": 15, "left": 0}
    assert reasons(report, "loss") == {"": "its head is quantised"}
    assert apart(logits(made, ids()), logits(library, ids())) < FLIPS


def test_rounded_outputs_are_refused() -> None:
    how = scheme(args(), token(), output_activations=token())
    report = opmux_transformers.patch(compressed(model(**WIDE), how))
    assert set(reasons(report, "linear").values()) == {f"{STAYS}: its output is quantised too"}


def test_one_linear_that_is_left_keeps_all_of_them() -> None:
    eight = scheme(args(), token(), targets=("re:.*self_attn.*", "re:.*gate_proj", "re:.*up_proj"))
    four = scheme(W4, None, targets=("re:.*down_proj",))
    made = compressed(model(**WIDE), eight, four)
    library = copy.deepcopy(made)
    left = reasons(opmux_transformers.patch(made), "linear")
    assert left.pop("model.layers.0.mlp.down_proj") == f"{STAYS}: its weight has 4 bits"
    assert left.pop("model.layers.1.mlp.down_proj") == f"{STAYS}: its weight has 4 bits"
    together = (
        "the model's first call decompresses it together with model.layers.0.mlp.down_proj (its weight has 4 bits)"
    )
    assert set(left.values()) == {f"{STAYS}: {together}"}
    assert apart(logits(made, ids()), logits(library, ids())) < FLIPS


class Louder(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 1.01


def test_changed_mathematics() -> None:
    made = compressed(model(**WIDE), scheme(args(), token()))
    made.model.layers[1].mlp.down_proj.__class__ = Louder
    left = reasons(opmux_transformers.patch(made), "linear")
    assert left.pop("model.layers.1.mlp.down_proj").startswith(
        "on random codes it differs from the replacement by 0.00"
    )
    assert len(left) == 13


def test_states_of_a_linear() -> None:
    frozen = rounded(model(**WIDE), scheme(args(), token()))
    left = set(reasons(opmux_transformers.patch(frozen), "linear").values())
    assert left == {f"{STAYS}: its weight is not compressed yet (quantization_status frozen)"}
    made = compressed(model(**WIDE), scheme(args(), token()))
    switched_off(made)
    left = reasons(opmux_transformers.patch(made), "linear")
    assert left["model.layers.0.mlp.up_proj"] == f"{STAYS}: its quantisation is switched off (quantization_enabled)"
    made = compressed(model(**WIDE), scheme(args(), token()))
    expected = logits(made, ids())
    left = set(reasons(opmux_transformers.patch(made), "linear").values())
    decompressed = "its weight was decompressed by the model's first call; patch a model before it is called"
    assert left == {f"{STAYS}: {decompressed}"}
    assert apart(logits(made, ids()), expected) < FLIPS


def test_a_model_that_is_decompressed_while_it_is_patched() -> None:
    made = compressed(model(**WIDE), scheme(args(), token()))
    expected = logits(copy.deepcopy(made), ids())
    opmux_transformers.patch(made)
    logits(made, ids())
    ModelCompressor().decompress_model(made)
    assert apart(logits(made, ids()), expected) < FLIPS
    opmux_transformers.unpatch(made)
    assert hooks(made) == []  # it would decompress numbers
    assert apart(logits(made, ids()), expected) < FLIPS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("type", ["int", "float"])
def test_a_cast_of_the_model_casts_codes_and_they_are_taken_back(type: str, dtype: torch.dtype) -> None:
    plain = model(**WIDE)
    made = compressed(plain, scheme(args(type), token(type)))
    library, unrounded = copy.deepcopy(made), rounded(plain, scheme(args(type), None))
    opmux_transformers.patch(made)
    for of in (made, library):
        of.to(dtype)
    assert made.model.layers[0].mlp.gate_proj.weight.dtype == (torch.int8 if type == "int" else dtype)
    found, expected, exact = (logits(of, ids()).double() for of in (made, library, unrounded))
    assert apart(found, exact) < 1.1 * apart(expected, exact)
    if type == "float" and dtype.itemsize > 2:
        assert apart(found, expected) < 2e-2  # the library computes scales in float64 there
    opmux_transformers.unpatch(made)
    assert torch.equal(logits(made, ids()).double(), expected)


def test_a_whole_model_is_no_more_pickled_than_without_the_patch() -> None:
    made = compressed(model(**WIDE), scheme(args("float"), token("float")))
    library = copy.deepcopy(made)
    opmux_transformers.patch(made)
    made.register_forward_pre_hook(named("later"))
    for of in (library, made):
        with pytest.raises(AttributeError, match="ct_decompress_hook"):
            torch.save(of, io.BytesIO())
    assert hooks(made) == ["later"]  # saving has changed nothing
    without_hooks(made)
    del made._forward_pre_hooks[next(iter(made._forward_pre_hooks))]
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    assert hooks(torch.load(file, weights_only=False)) == []


def named(name: str) -> Any:
    def hook(*_: Any) -> None:
        return None

    hook.__name__ = name
    return hook


def test_hooks_of_others_keep_their_places() -> None:
    made = compressed(model(**WIDE), scheme(args(), token()))
    made.register_forward_pre_hook(named("first"), prepend=True)
    made.register_forward_pre_hook(named("last"))
    opmux_transformers.patch(made)
    assert hooks(made) == ["first", "last"]
    made.register_forward_pre_hook(named("later"))
    other = copy.deepcopy(made)
    for of in (made, other):
        opmux_transformers.unpatch(of)
        assert hooks(of) == ["first", "ct_decompress_hook", "last", "later"]
        assert of.ct_decompress_hook.id in of._forward_pre_hooks


def test_a_hook_that_was_removed_stays_so() -> None:
    made = compressed(model(**WIDE), scheme(args(), token()))
    without_hooks(made)
    assert WAITS not in opmux_transformers.patch(made).notes
    opmux_transformers.unpatch(made)
    assert hooks(made) == []


def test_copies_are_patched_and_independent() -> None:
    made = compressed(model(**WIDE), scheme(args("float"), token("float")))
    opmux_transformers.patch(made)
    other = copy.deepcopy(made)
    expected = logits(made, ids())
    opmux_transformers.unpatch(made)
    logits(made, ids())
    assert torch.equal(logits(other, ids()), expected)
    assert other.model.layers[0].mlp.gate_proj.weight.dtype == torch.float8_e4m3fn


def test_a_rounded_cache() -> None:
    cache = args(strategy="tensor", dynamic=True)
    made = compressed(model(**WIDE), scheme(args("float"), token("float")), kv_cache_scheme=cache)
    library = copy.deepcopy(made)
    report = opmux_transformers.patch(made)
    assert report.counts()["linear"] == {"replaced": 14, "left": 0}
    assert set(reasons(report, "attention").values()) == {
        "compressed-tensors rounds its keys and values (kv_cache_scheme), between its projections and its cache"
    }
    assert report.left("cache")
    assert apart(logits(made, ids()), logits(library, ids())) < 1e-2
    assert torch.equal(generated(made, ids(4)), generated(library, ids(4)))


def test_it_can_be_switched_off() -> None:
    made = compressed(model(**WIDE), scheme(args(), token()))
    expected = logits(copy.deepcopy(made), ids())
    report = opmux_transformers.patch(made, linear=False)
    assert set(reasons(report, "linear").values()) == {"not asked for: linear=False"}
    assert hooks(made) == ["ct_decompress_hook"]
    assert apart(logits(made, ids()), expected) < FLIPS
