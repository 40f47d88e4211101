"""Gated activations: a tile of the result in each block."""
