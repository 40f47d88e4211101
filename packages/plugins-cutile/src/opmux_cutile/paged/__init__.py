"""Attention over a paged cache: a block computes some queries of the heads that share keys, over a part of the keys."""
