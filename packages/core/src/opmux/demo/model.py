"""A small Llama in which every operator is an opmux op."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import opmux

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, rotated q, rotated k, v) -> attention's output: how serving puts a cache between the layers."""


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of the model; `hidden = heads * head_dim`."""

    vocabulary: int
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    max_positions: int = 256
    eps: float = 1e-5

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim


class Layer(nn.Module):
    """The weights of one layer; q, k and v are one matrix, and so are gate and up."""

    def __init__(self, config: LlamaConfig) -> None:
        """Allocate the weights of a layer of `config`."""
        super().__init__()
        hidden = config.hidden
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.empty((config.heads + 2 * config.kv_heads) * config.head_dim, hidden))
        self.attention_out = nn.Parameter(torch.empty(hidden, hidden))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate, hidden))
        self.down = nn.Parameter(torch.empty(hidden, config.intermediate))


class Llama(nn.Module):
    """RMSNorm, RoPE, grouped-query attention and SwiGLU, in float32.

    Source: Touvron et al., "LLaMA: Open and efficient foundation language models", 2023.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig, seed: int = 0) -> None:
        """Make a model with random weights.

        Args:
            config: The sizes.
            seed: Gives the weights.
        """
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_norm = nn.Parameter(torch.ones(config.hidden))
        self.head = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        inv_freq, attention_factor = opmux.rope.default(head_dim=config.head_dim, rope_theta=10_000.0)
        cos, sin = opmux.rope.tables(inv_freq, config.max_positions, attention_factor)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What writes to the residual stream starts smaller, the more layers add to it (GPT-2).
                writes = name.endswith(("attention_out", "down"))
                scale = 1 / math.sqrt(2 * config.layers) if writes else 1.0
                std = 0.02 if name == "embedding" else 1 / math.sqrt(weight.shape[1])
                nn.init.normal_(weight, std=scale * std, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits of whole sequences.

        Args:
            ids: int64[batch, seq].

        Returns:
            float32[batch, seq, vocabulary].
        """

        def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return opmux.attention(q, k, v, causal=True)

        return self.logits(self.body(ids, None, attend))

    def stack(self) -> list[Layer]:
        """The layers, from the embedding to the head."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def body(self, ids: Tensor, positions: Tensor | None, attend: Attend) -> Tensor:
        """Everything between the ids and the logits.

        Args:
            ids: int64[*tokens].
            positions: The place of each token in its sequence, int64[*tokens]; None counts along the last dim.
            attend: Computes attention.

        Returns:
            The normed residual stream, float32[*tokens, hidden].
        """
        c = self.config
        residual = F.embedding(ids, self.embedding)
        layers = self.stack()
        y = opmux.rms_norm(residual, layers[0].attention_norm, eps=c.eps)
        # The norm that follows each layer is fused with the sum before it.
        norms = [layer.attention_norm for layer in layers[1:]] + [self.final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, norms, strict=True)):
            heads = torch.unflatten(opmux.linear(y, layer.qkv), -1, (-1, c.head_dim))
            q, k, v = torch.split(heads, [c.heads, c.kv_heads, c.kv_heads], dim=-2)
            q, k = opmux.apply_rope(q, k, self.cos, self.sin, positions)
            y = opmux.linear(attend(index, q, k, v).flatten(-2), layer.attention_out)
            y, residual = opmux.add_rms_norm(y, residual, layer.mlp_norm, eps=c.eps)
            y = opmux.linear(opmux.silu_and_mul(opmux.linear(y, layer.gate_up)), layer.down)
            y, residual = opmux.add_rms_norm(y, residual, next_norm, eps=c.eps)
        return y

    def logits(self, y: Tensor) -> Tensor:
        """The logits of what `body` gives: float32[*tokens, vocabulary]."""
        return opmux.linear(y, self.head)
