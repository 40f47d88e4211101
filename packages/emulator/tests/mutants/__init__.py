"""Mutants of correct kernels: what the emulator and a comparison with the right result notice of planted mistakes."""
