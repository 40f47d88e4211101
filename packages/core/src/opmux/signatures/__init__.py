"""Signatures as data: dims and expressions, what a definition says, validation compiled from it."""
