"""Signatures as data: dims and expressions, what a definition says, and the checks that name the broken rule."""
