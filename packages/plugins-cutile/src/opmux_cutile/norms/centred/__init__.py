"""A norm around the mean of a sum."""
