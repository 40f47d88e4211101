"""Products of 8-bit codes with scales."""
