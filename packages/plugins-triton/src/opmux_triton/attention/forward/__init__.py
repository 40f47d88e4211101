"""Attention of queries over keys: dense and ragged batches."""
