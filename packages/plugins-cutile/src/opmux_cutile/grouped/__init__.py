"""Products of groups of rows, each with a weight of its own."""
