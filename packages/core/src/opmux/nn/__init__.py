"""The ops as modules of torch, for authors of their own models: `opmux.nn`.

Constructor arguments and the names in a state dict are those of the twins in `torch.nn`, where there is one, and of
the published model families elsewhere. Where a module takes ``backend=``, it hands it to its ops. The modules hold
weights and call ops, no more: what compiles, shards, checkpoints or copies a module of torch does the same with these.
"""

from opmux.nn.attention import Attention
from opmux.nn.context import Context, PackedSequences
from opmux.nn.linear import Linear
from opmux.nn.mlp import GatedMLP
from opmux.nn.norm import LayerNorm, RMSNorm
from opmux.nn.paged import PagedCache, PagedLayer, PagedStep
from opmux.nn.rotary import RotaryEmbedding

__all__ = [
    "Attention",
    "Context",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "PackedSequences",
    "PagedCache",
    "PagedLayer",
    "PagedStep",
    "RMSNorm",
    "RotaryEmbedding",
]
