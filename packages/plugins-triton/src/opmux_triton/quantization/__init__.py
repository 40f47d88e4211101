"""Quantisation to 8-bit floats and integers, with a scale per block."""
