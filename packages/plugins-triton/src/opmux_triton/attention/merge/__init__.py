"""Merging partial attention results, forward and backward."""
