"""Attention: over a paged cache, one query a sequence, and dense."""
