"""Quantisation: alone, or in one pass with the norm or the gated activation before it."""
