"""AITER's tables of tuned products, read as tuned records."""
