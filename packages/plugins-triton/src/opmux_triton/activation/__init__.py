"""Gates: SiLU and GELU times another half, packed or apart, and their gradients."""
