"""The straight line of a planned call: generated source, guards, plan tables, the op object."""
