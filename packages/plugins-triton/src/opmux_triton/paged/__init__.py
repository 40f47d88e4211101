"""Attention over a paged KV cache: decode with split KV, chunked prefill."""
