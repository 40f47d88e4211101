"""The mask and the online softmax of a block of scores, in Gluon."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opmux_triton.scoring import masks

_attends = gluon.jit(masks.attends.fn)


@gluon.jit
def _by_thread(scores):
    """A block's columns as (eights, 4 threads, 2): reductions over the first and the last stay in a thread."""
    return scores.reshape([scores.shape[0], scores.shape[1] // 8, 4, 2])


@gluon.jit
def softmax(scores, total, top, scale):
    """(weights, total, top, decay) of one more block of scores, in base 2; ``total`` is one sum for each thread."""
    most = gl.max(gl.max(gl.max(_by_thread(scores), 3), 1), 1)
    new_top = gl.maximum(top, gl.convert_layout(most, top.type.layout) * scale)
    anchor = gl.where(new_top == float("-inf"), 0.0, new_top)
    weights = gl.exp2(scores * scale - anchor[:, None])
    decay = gl.exp2(top - anchor)
    sums = gl.sum(gl.sum(_by_thread(weights), 3), 1)
    total = total * gl.convert_layout(decay, gl.SliceLayout(1, total.type.layout))[:, None]
    return weights, total + gl.convert_layout(sums, total.type.layout), new_top, decay


@gluon.jit
def mask(scores, start, query, queries, keys, left, right, LEFT: gl.constexpr, RIGHT: gl.constexpr):
    """Scores with -inf where the query does not see the key."""
    key = start + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, scores.type.layout))
    seen = _attends(query[:, None], key[None, :], queries, keys, left, right, LEFT, RIGHT)
    return gl.where(seen, scores, float("-inf"))
