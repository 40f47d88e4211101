"""Products of 8-bit codes with scales of blocks in which rows of w take the place of rows of x."""
