"""Norms: RMS and layer norm, alone or after a residual sum, and their gradients."""
