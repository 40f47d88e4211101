"""Decoding from a paged cache by slices of pages, which is a part of attention over one."""
