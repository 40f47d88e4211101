"""The ops whose kernels hold whole rows: norms, gates and quantisation."""
