"""Instruction sets: which opcodes an arch has, decoding, and text."""
