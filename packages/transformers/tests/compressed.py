"""Models as compressed-tensors makes them: quantised in this process, or loaded from a checkpoint of its own."""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from torch import nn

import opmux

INPUT_SCALE = 0.03
"""The scale of static activations: some values are cut off."""
LARGEST = {"int": 127.0, "float": 448.0}


def args(type: str = "int", bits: int = 8, strategy: str = "channel", **given: Any) -> QuantizationArgs:
    """What the library is told of a weight or of an input."""
    return QuantizationArgs(**{"num_bits": bits, "type": type, "symmetric": True, "strategy": strategy, **given})


def token(type: str = "int") -> QuantizationArgs:
    """Dynamic scales of tokens."""
    return args(type, strategy="token", dynamic=True)


def scheme(weights: Any, inputs: Any, targets: tuple[str, ...] = ("Linear",), **given: Any) -> QuantizationScheme:
    """The scheme of some modules."""
    return QuantizationScheme(targets=list(targets), weights=weights, input_activations=inputs, **given)


def rounded(plain: nn.Module, *schemes: QuantizationScheme, **config: Any) -> Any:
    """A copy of a model whose modules have these schemes, with scales found from its weights, not compressed yet."""
    made: Any = copy.deepcopy(plain)
    groups = {f"group_{n}": scheme for n, scheme in enumerate(schemes)}
    given = {"config_groups": groups, "ignore": ["lm_head"], "quantization_status": "frozen", **config}
    apply_quantization_config(made, QuantizationConfig(**given), show_progress=False)
    for module in made.modules():
        if (found := getattr(module, "quantization_scheme", None)) is not None and found.weights is not None:
            _fill(module, found.weights)
    return made


def _fill(module: Any, how: QuantizationArgs) -> None:
    """Give a module the scales of its weight."""
    weight = module.weight.detach().float()
    shapes = {"tensor": (-1, -1), "channel": (1, -1), "block": (128, 128), "group": (1, 128)}
    _, scale = opmux.quantize(weight, dtype=torch.int8, block=shapes[str(getattr(how.strategy, "value", how.strategy))])
    scale *= 127 / (LARGEST[how.type] if how.num_bits == 8 else 2.0 ** (how.num_bits - 1) - 1)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(INPUT_SCALE)


def compressed(plain: nn.Module, *schemes: QuantizationScheme, **config: Any) -> Any:
    """The same, compressed by the library in place: its first call would decompress it."""
    made = rounded(plain, *schemes, **config)
    ModelCompressor.from_pretrained_model(made).compress_model(made)
    return made


def loaded(plain: nn.Module, folder: Path, *schemes: QuantizationScheme, **given: Any) -> Any:
    """The same, written to a folder and loaded by transformers."""
    made = rounded(plain, *schemes)
    compressor = ModelCompressor.from_pretrained_model(made)
    compressor.compress_model(made)
    made.save_pretrained(folder)
    compressor.update_config(str(folder))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **given).eval()


def hooks(of: Any) -> list[Any]:
    """The names of a model's hooks, in order."""
    return [hook.__name__ for hook in of._forward_pre_hooks.values()]
