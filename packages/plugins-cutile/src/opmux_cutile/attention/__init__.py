"""Attention: a block computes some queries of one head, over the keys that they see."""
