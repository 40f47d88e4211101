"""Rotary embedding: a block rotates the queries and keys of some tokens."""
