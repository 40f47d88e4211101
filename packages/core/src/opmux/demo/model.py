"""A small Llama of opmux modules, in which every operator is an opmux op."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opmux.nn import Attention, Context, GatedMLP, Linear, RMSNorm, RotaryEmbedding


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
    """One layer; q, k and v are one matrix, and so are gate and up. The model calls its parts."""

    def __init__(self, config: LlamaConfig, rotary: RotaryEmbedding) -> None:
        """Allocate the weights of a layer of `config`."""
        super().__init__()
        c = config
        self.attention_norm = RMSNorm(c.hidden, c.eps)
        self.attention = Attention(c.hidden, c.heads, c.kv_heads, c.head_dim, rotary=rotary, fused=True)
        self.mlp_norm = RMSNorm(c.hidden, c.eps)
        self.mlp = GatedMLP(c.hidden, c.intermediate, fused=True)


class Llama(nn.Module):
    """RMSNorm, RoPE, grouped-query attention and SwiGLU, in float32.

    Source: Touvron et al., "LLaMA: Open and efficient foundation language models", 2023.
    """

    def __init__(self, config: LlamaConfig, seed: int = 0) -> None:
        """Make a model with random weights.

        Args:
            config: The sizes.
            seed: Gives the weights.
        """
        super().__init__()
        self.config = config
        self.rotary = RotaryEmbedding(config.head_dim, config.max_positions)
        self.embedding = nn.Parameter(torch.empty(config.vocabulary, config.hidden))
        self.head = Linear(config.hidden, config.vocabulary, bias=False)
        self.layers = nn.ModuleList(Layer(config, self.rotary) for _ in range(config.layers))
        self.final_norm = RMSNorm(config.hidden, config.eps)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # Projections into the residual stream start smaller the more layers there are (GPT-2).
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
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
        return self.logits(self.body(ids))

    def stack(self) -> list[Layer]:
        """The layers, from the embedding to the head."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def body(self, ids: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        """Everything between the ids and the logits.

        Args:
            ids: int64[batch, seq]; with contexts int64[tokens].
            contexts: What the tokens attend to in each layer; None is their own row.

        Returns:
            The normed residual stream, float32[*tokens, hidden].
        """
        residual = F.embedding(ids, self.embedding)
        layers = self.stack()
        y = layers[0].attention_norm(residual)
        # The norm that follows each layer is fused with the sum before it.
        norms = [layer.attention_norm for layer in layers[1:]] + [self.final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, norms, strict=True)):
            y = layer.attention(y, context=None if contexts is None else contexts[index])
            y, residual = layer.mlp_norm(y, residual)
            y, residual = next_norm(layer.mlp(y), residual)
        return y  # type: ignore[no-any-return]

    def logits(self, y: Tensor) -> Tensor:
        """The logits of what `body` gives: float32[*tokens, vocabulary]."""
        return self.head(y)  # type: ignore[no-any-return]
