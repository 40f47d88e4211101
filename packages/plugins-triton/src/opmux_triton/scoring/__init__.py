"""What the kernels of dense, ragged and paged attention share: masks, the softmax in base 2, the pipeline on sm_90."""
