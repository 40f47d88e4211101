"""Norms of rows: CK's rmsnorm2d and layernorm2d."""
