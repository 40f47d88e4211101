"""A model of how fast a kernel would issue: cycles of its hot loop, and the share in which the matrix unit is busy."""
