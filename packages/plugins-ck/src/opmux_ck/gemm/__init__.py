"""Products: CK's universal GEMM."""
