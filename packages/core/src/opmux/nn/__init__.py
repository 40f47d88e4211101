"""The ops as torch modules, for writing models: `opmux.nn`.

Constructor arguments and state dict names are those of the counterpart in `torch.nn`, if there is one, and otherwise
those of the published model families. A module that takes ``backend=`` passes it to its ops. The modules only hold
weights and call ops, so they can be compiled, sharded, checkpointed and copied like any other torch module.
"""

from opmux.nn.attention import Attention
from opmux.nn.autocast import autocast_dtype
from opmux.nn.context import Context, PackedSequences
from opmux.nn.expert_weights import GroupedCodes
from opmux.nn.grouped import GroupedLinear, MoE
from opmux.nn.linear import Linear
from opmux.nn.mixture import mix_experts
from opmux.nn.mlp import GatedMLP
from opmux.nn.norm import LayerNorm, RMSNorm
from opmux.nn.paged import PagedCache, PagedLayer, PagedStep
from opmux.nn.quantization import quantize_
from opmux.nn.quantization_choice import DEFAULT_SKIP
from opmux.nn.quantization_report import QuantizationReport, QuantizedRow
from opmux.nn.quantized import QuantizedLinear
from opmux.nn.rotary import RotaryEmbedding

__all__ = [
    "DEFAULT_SKIP",
    "Attention",
    "Context",
    "GatedMLP",
    "GroupedCodes",
    "GroupedLinear",
    "LayerNorm",
    "Linear",
    "MoE",
    "PackedSequences",
    "PagedCache",
    "PagedLayer",
    "PagedStep",
    "QuantizationReport",
    "QuantizedLinear",
    "QuantizedRow",
    "RMSNorm",
    "RotaryEmbedding",
    "autocast_dtype",
    "mix_experts",
    "quantize_",
]
