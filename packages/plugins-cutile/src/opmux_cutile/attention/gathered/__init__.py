"""Attention where there is no copy engine: on Ampere and Ada, threads copy queries, keys and values."""
