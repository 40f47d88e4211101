"""Norms: a row, or several short ones, in each block."""
