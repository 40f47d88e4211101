"""Dependent launch: a kernel's programs may start while the last ones of the kernel before are still at work.

Hides most of the time between two kernels, which is a notable part of kernels as short as those of a decode step. On
NVIDIA from Hopper on (CUDA programming guide, "Programmatic Dependent Launch"; PTX ISA, ``griddepcontrol``).

Every program of such a kernel waits first, before it reads or writes anything: the wait ends when the kernel before has
completed and its results are visible. A kernel whose programs could end without the wait would let the one after it
start before the one before it is done; so the wait comes before any early return.

Bringing a product's first weights to the L2 cache before the wait was tried, and gained nothing on an H200.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_predecessor(DEPENDENT: tl.constexpr):
    """Wait for the kernel before, then let the one after start; nothing where ``DEPENDENT`` is False."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
