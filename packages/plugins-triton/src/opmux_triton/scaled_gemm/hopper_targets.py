"""What the core calls for scaled products on sm_90 where the Gluon kernel computes them."""

from opmux_triton.scaled_gemm.hopper_products import fast_product, product
from opmux_triton.scaled_gemm.targets import scaled_linear_accumulate_by, scaled_linear_by

scaled_linear = scaled_linear_by(product)
scaled_linear_accumulate = scaled_linear_accumulate_by(product)
fast_scaled_linear = scaled_linear_by(fast_product)
