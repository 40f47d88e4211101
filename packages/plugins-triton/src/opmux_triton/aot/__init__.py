"""Ahead of time, without a GPU: every kernel in every config that an arch gets, compiled, its machine code checked."""
