"""The same model in plain PyTorch: torch.nn.functional and complex numbers, no opmux op."""

import torch
from torch import Tensor
from torch.nn import functional as F

from opmux.demo.model import Llama


def forward(model: Llama, ids: Tensor) -> Tensor:
    """The logits of whole sequences, from the weights of `model`.

    Args:
        model: Gives the weights; its buffers are not used.
        ids: int64[batch, seq].

    Returns:
        float32[batch, seq, vocabulary].
    """
    c = model.config
    shape = (c.hidden,)
    turns = _turns(ids.shape[1], c.head_dim, ids.device)
    x = F.embedding(ids, model.embedding)
    for layer in model.stack():
        y = F.rms_norm(x, shape, layer.attention_norm.weight, c.eps)
        heads = torch.unflatten(F.linear(y, layer.attention.qkv_proj.weight), -1, (-1, c.head_dim)).transpose(1, 2)
        q = _rotate(heads[:, : c.heads], turns)
        k = _rotate(heads[:, c.heads : c.heads + c.kv_heads], turns)
        v = heads[:, c.heads + c.kv_heads :]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).flatten(2), layer.attention.o_proj.weight)
        y = F.rms_norm(x, shape, layer.mlp_norm.weight, c.eps)
        gate, up = F.linear(y, layer.mlp.gate_up_proj.weight).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
    return F.linear(F.rms_norm(x, shape, model.final_norm.weight, c.eps), model.head.weight)


def _turns(seq: int, head_dim: int, device: torch.device) -> Tensor:
    """The unit complex number by which each pair of each position turns, complex64[seq, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    angles = torch.outer(torch.arange(seq, dtype=torch.float64, device=device), 10_000.0**-exponents)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def _rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the pairs (i, i + head_dim / 2) of x[batch, heads, seq, head_dim]."""
    real, imaginary = x.chunk(2, dim=-1)
    turned = torch.complex(real.contiguous(), imaginary.contiguous()) * turns
    return torch.cat((turned.real, turned.imag), dim=-1)
