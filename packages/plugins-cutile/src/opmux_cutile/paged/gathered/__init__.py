"""Attention over a paged cache on Ampere and Ada, and on the consumers' Blackwell."""
