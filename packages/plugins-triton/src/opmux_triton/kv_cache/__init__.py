"""Writes into a paged KV cache."""
