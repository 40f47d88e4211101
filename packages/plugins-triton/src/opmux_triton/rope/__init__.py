"""Rotary position embedding, forward, in place and backward."""
