"""The paged cache: keys and values are written to their slots, one launch for both."""
