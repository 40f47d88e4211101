"""Attention: CK's forward over dense and ragged batches."""
