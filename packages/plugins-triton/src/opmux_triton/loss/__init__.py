"""Losses over a vocabulary, of logits and of a linear layer in chunks."""
