"""Grouped products: rows of several groups, each by a weight of its own; the groups are found on the device."""
