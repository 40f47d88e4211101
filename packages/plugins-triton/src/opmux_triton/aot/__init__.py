"""Compiles every kernel in every config that an arch gets, ahead of time and without a GPU, and checks the code."""
