"""Launching a kernel: its memory, its arguments, what it did and what was wrong with it."""
