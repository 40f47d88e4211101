"""Dense and ragged attention, forward and backward."""
