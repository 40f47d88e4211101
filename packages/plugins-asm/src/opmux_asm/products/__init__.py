"""Products: `linear` and `scaled_linear`."""
