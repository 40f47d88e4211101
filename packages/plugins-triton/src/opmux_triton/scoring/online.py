"""The online softmax of the Triton kernels, to base 2: a block's weights, and what a sink adds at the end.

The compiler contracts ``score * scale - top`` to a fused multiply-add, which does not round the product, while ``top``
is that product rounded. So the exponent of the largest score is not 0 but the rounding error of ``top``: up to half a
unit in the last place, which is more than 2**7 for scores of 2**31 and above, where the weight becomes infinite or 0.
With float32 inputs every exponent is therefore a difference of unscaled scores, times the scale. 16-bit inputs keep the
fused multiply-add, one instruction for each score instead of two; their scores are right up to 2**30.
"""

import triton
import triton.language as tl

from opmux_triton.scoring.base2 import LOG2_E


@triton.jit
def weights_of(scores, top, scale, SCALED: tl.constexpr, WIDE: tl.constexpr):
    """(weights, new top, decay) of a block of scores.

    Scores that are SCALED are exponents of 2 already; others become that times ``scale``, which is positive. ``top`` is
    the largest of the exponents, but of the unscaled scores where WIDE (float32 inputs).
    """
    highest = tl.max(scores, 1)
    if not (SCALED or WIDE):
        highest = highest * scale
    new_top = tl.maximum(top, highest)
    # A row without any score so far is measured from 0: -inf - -inf would be NaN.
    anchor = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = top - anchor
    if SCALED:
        exponents = scores - anchor[:, None]
    elif WIDE:
        exponents = (scores - anchor[:, None]) * scale
        decay = decay * scale
    else:
        exponents = scores * scale - anchor[:, None]
    return tl.exp2(exponents), new_top, tl.exp2(decay)


@triton.jit
def with_sink(total, top, sink):
    """(decay, total, top) with a sink: ``decay`` is what the sums of values are to be multiplied by.

    ``top`` is an exponent of 2, the sink a natural one.
    """
    exponent = sink * LOG2_E
    ahead = top - exponent
    joint = tl.maximum(top, exponent)
    # Either may be the top: one of the two differences is 0, exactly, and neither is above it. NaN stays NaN.
    decay = tl.where(joint == float("-inf"), 0.0, tl.exp2(tl.where(ahead > 0, 0.0, ahead)))
    share = tl.where(joint == float("-inf"), 0.0, tl.exp2(tl.where(ahead < 0, 0.0, -ahead)))
    share = tl.where(sink < float("inf"), share, float("nan"))
    return decay, total * decay + share, joint
