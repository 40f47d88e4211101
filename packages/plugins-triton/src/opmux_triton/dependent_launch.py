"""Dependent launch: a kernel's programs may start while the last programs of the previous kernel still run.

This hides most of the gap between two kernels, a notable part of kernels as short as those of a decode step. On NVIDIA
from Hopper on (CUDA programming guide, "Programmatic Dependent Launch"; PTX ISA, ``griddepcontrol``).

Every program of such a kernel waits before it reads or writes anything: the wait ends when the previous kernel has
completed and its results are visible. A kernel whose programs could end without waiting would let the next kernel start
before the previous one is done; so the wait comes before any early return.

Prefetching a product's first weights into the L2 cache before the wait gained nothing on an H200.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_predecessor(DEPENDENT: tl.constexpr):
    """Wait for the previous kernel, then let the next one start; does nothing if ``DEPENDENT`` is False."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
