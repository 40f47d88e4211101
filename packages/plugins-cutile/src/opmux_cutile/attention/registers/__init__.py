"""Attention where both operands of the matrix units come from registers, and there is a copy engine."""
