"""The online softmax of the Triton kernels, to base 2: a block's weights, and what a sink adds at the end.

The compiler contracts ``score * scale - top`` to a fused multiply-add, which does not round the product, while ``top``
is that product rounded. So the exponent of the largest score is not 0 but the rounding error of ``top``: up to half a
unit in the last place, which is more than 2**7 for scores of 2**31 and above, where the weight becomes infinite or 0.
With float32 inputs every exponent is therefore a difference of unscaled scores, times the scale. 16-bit inputs keep the
fused multiply-add, one instruction for each score instead of two: they are right for scores up to 2**30, in float16 up
to 2**26.
"""

import triton
import triton.language as tl

from opmux_triton.scoring.base2 import LOG2_E


@triton.jit
def weights_of(scores, top, scale, SCALED: tl.constexpr, WIDE: tl.constexpr, RAISED: tl.constexpr = 0.0):
    """(weights, new top, decay) of a block of scores.

    Scores that are SCALED are exponents of 2 already; others become that times ``scale``, which is positive. ``top`` is
    the largest of the exponents, but of the unscaled scores where WIDE (float32 inputs). RAISED is taken from ``top``
    where not WIDE: the weights, and all sums with them, are larger by that power of 2.
    """
    highest = tl.max(scores, 1)
    if not (SCALED or WIDE):
        highest = highest * scale
    if RAISED > 0:
        highest = highest - RAISED
    new_top = tl.maximum(top, highest)
    # A row without any score so far is measured from 0: -inf - -inf would be NaN.
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    if SCALED:
        weights = tl.exp2(scores - anchor[:, None])
        decay = tl.exp2(top - anchor)
    elif WIDE:
        weights = tl.exp2((scores - anchor[:, None]) * scale)
        decay = tl.exp2((top - anchor) * scale)
    else:
        weights = tl.exp2(scores * scale - anchor[:, None])
        decay = tl.exp2(top - anchor)
    return weights, new_top, decay


@triton.jit
def with_sink(total, top, sink):
    """(decay, total, top) with a sink: ``decay`` is what the sums of values are to be multiplied by.

    ``top`` is an exponent of 2, the sink a natural one.
    """
    exponent = sink * LOG2_E
    joint = tl.maximum(top, exponent)
    anchor = tl.where(joint == float("-inf"), 0.0, joint)
    # Of the larger one the difference is 0, exactly, and NaN for infinity; the other one's is a rounding or more below.
    decay = tl.exp2(tl.where(top == joint, 0.0, top - anchor))
    share = tl.exp2(tl.where(exponent == joint, anchor * 0.0, exponent - anchor))
    return decay, total * decay + share, joint
