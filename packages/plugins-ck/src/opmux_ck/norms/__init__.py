"""Norms of rows: CK's rmsnorm2d."""
