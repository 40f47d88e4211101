"""The pipeline of a computing warpgroup in Gluon: 64 rows of queries against rings of key and value blocks.

Attention's forward and paged prefill use it. They differ in the blocks of a tile: ``ranges`` describes these, with
``ranges[0]`` the number of blocks that need a mask, which come first, and ``start_of(index, ranges, BLOCK)`` returns
the first key of the block ``index``.

A step issues the scores of a block before the product of the previous block's weights and values, and computes the
softmax of the one while the tensor cores do the other; with ``TURNS``, warpgroups take turns at issuing. Both orders of
overlap are those of Shah et al., FlashAttention-3 (2024), sections 3.1 and 3.2.

A head whose size is not a power of two comes in two parts, its first columns and the rest. ``WIDTHS`` holds (first
columns of the keys, their rest, first columns of the values, their rest): powers of two, with 0 for no rest.

Arguments of several functions:
    used: how many blocks passed through the rings before this one.
    q_tiles: 64 queries in shared memory: (first columns, rest).
    rings: (keys, values, rest of the keys, rest of the values), each ``STAGES`` blocks of ``BLOCK`` rows in shared
        memory. What stands in the place of a rest that does not exist is not read.
    mean, rest: the sums of the values; a rest that does not exist is returned as it came.
    barriers: (keys loaded, keys read, values loaded, values read), each a barrier for every stage.
    band: (queries, keys, left, right) as `opmux_triton.scoring.masks` has them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from opmux_triton.scoring.base2 import LN_2, LOG2_E
from opmux_triton.scoring.hopper_softmax import mask, softmax


@gluon.constexpr_function
def product_layout(columns):
    """The layout of a warpgroup's product of 64 rows."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.constexpr_function
def row_layout(columns):
    """The layout of a number for each row of such a product."""
    return gl.SliceLayout(1, product_layout(columns))


@gluon.constexpr_function
def weight_layout(columns):
    """The layout of weights that are multiplied to such a product."""
    return gl.DotOperandLayout(0, product_layout(columns), 2)


TOTAL_LAYOUT = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[8, 0]],
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 4],
    )
)
"""The rows of a product, and the four threads that share each row: converting a product's rows to it is free."""


@gluon.jit
def sums_before(sink, BLOCK: gl.constexpr):
    """(top, total) before the first block; ``sink`` points to the head's sink, or is None."""
    if sink is not None:
        top = gl.full([64], 0.0, gl.float32, row_layout(BLOCK)) + gl.load(sink).to(gl.float32) * LOG2_E
        quarter = gl.exp2(top - gl.where(top == float("-inf"), 0.0, top)) * 0.25
        quarter = gl.convert_layout(quarter, gl.SliceLayout(1, TOTAL_LAYOUT))
        total = quarter[:, None] + gl.zeros([64, 4], gl.float32, TOTAL_LAYOUT)
    else:
        top = gl.full([64], float("-inf"), gl.float32, row_layout(BLOCK))
        total = gl.zeros([64, 4], gl.float32, TOTAL_LAYOUT)
    return top, total


@gluon.jit
def _score(q_tiles, rings, stage, BLOCK: gl.constexpr, WIDTHS: gl.constexpr):
    """Issue the product of queries and a block of keys."""
    scores = gl.zeros([64, BLOCK], gl.float32, product_layout(BLOCK))
    k_tile = rings[0].index(stage).reshape([BLOCK, WIDTHS[0]]).permute((1, 0))
    scores = warpgroup_mma(q_tiles[0], k_tile, scores, use_acc=False, is_async=True)
    if WIDTHS[1] > 0:
        k_rest = rings[2].index(stage).reshape([BLOCK, WIDTHS[1]]).permute((1, 0))
        scores = warpgroup_mma(q_tiles[1], k_rest, scores, is_async=True)
    return scores


@gluon.jit
def _add_values(weights, rings, stage, mean, rest, BLOCK: gl.constexpr, WIDTHS: gl.constexpr):
    """Issue the product of weights and a block of values."""
    mean = warpgroup_mma(weights, rings[1].index(stage).reshape([BLOCK, WIDTHS[2]]), mean, is_async=True)
    if WIDTHS[3] > 0:
        of_rest = gl.convert_layout(weights, weight_layout(WIDTHS[3]))
        rest = warpgroup_mma(of_rest, rings[3].index(stage).reshape([BLOCK, WIDTHS[3]]), rest, is_async=True)
    return mean, rest


@gluon.jit
def first_scores(
    used, q_tiles, rings, barriers, BLOCK: gl.constexpr, WIDTHS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The scores of a tile's first block."""
    k_full, k_empty, _v_full, _v_empty = barriers
    stage = used % STAGES
    mbarrier.wait(k_full.index(stage), used // STAGES & 1)
    scores = warpgroup_mma_wait(0, [_score(q_tiles, rings, stage, BLOCK, WIDTHS)])
    mbarrier.arrive(k_empty.index(stage), count=1)
    return scores


@gluon.jit
def step(
    index, used, turn, mean, rest, weights, total, top, q_tiles, rings, barriers, turns, query, ranges, band, scale,
    start_of: gl.constexpr, BLOCK: gl.constexpr, WIDTHS: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Block ``index``'s scores and weights, while block ``index - 1``'s weights and values are multiplied.

    One loop serves blocks with and without a mask: a second loop would unpack and pack the weights that it gets from
    the first in every step.

    ``turn`` counts the steps before this one, ``turns`` holds a barrier for each warpgroup; neither is read without
    ``TURNS``.
    """
    k_full, k_empty, v_full, v_empty = barriers
    stage = used % STAGES
    before = (used - 1) % STAGES
    mbarrier.wait(k_full.index(stage), used // STAGES & 1)
    if TURNS:  # one warpgroup issues its products while the others are at their softmax
        mbarrier.wait(turns.index(GROUP), (turn & 1) ^ (1 if GROUP == 0 else 0))
    scores = _score(q_tiles, rings, stage, BLOCK, WIDTHS)
    mbarrier.wait(v_full.index(before), (used - 1) // STAGES & 1)
    mean, rest = _add_values(weights, rings, before, mean, rest, BLOCK, WIDTHS)
    if TURNS:
        mbarrier.arrive(turns.index((GROUP + 1) % GROUPS), count=1)
    scores = warpgroup_mma_wait(2 if WIDTHS[3] > 0 else 1, [scores])
    if LEFT or RIGHT:
        if index < ranges[0]:
            queries, keys, left, right = band
            start = start_of(index, ranges, BLOCK)
            scores = mask(scores, start, query, queries, keys, left, right, LEFT, RIGHT)
    exact, total, top, decay = softmax(scores, total, top, scale)
    # Already passed. It is a branch, across which the assembler does not move the softmax behind the product.
    mbarrier.wait(v_full.index(before), (used - 1) // STAGES & 1)
    if WIDTHS[3] > 0:
        mean, rest, weights = warpgroup_mma_wait(0, [mean, rest, weights])
        rest = rest * gl.convert_layout(decay, gl.SliceLayout(1, rest.type.layout))[:, None]
    else:
        mean, weights = warpgroup_mma_wait(0, [mean, weights])
    mbarrier.arrive(k_empty.index(stage), count=1)
    mbarrier.arrive(v_empty.index(before), count=1)
    mean = mean * gl.convert_layout(decay, gl.SliceLayout(1, mean.type.layout))[:, None]
    new_weights = gl.convert_layout(exact.to(weights.dtype), weights.type.layout)
    return mean, rest, new_weights, total, top


@gluon.jit
def issue_last(
    used, mean, rest, weights, total, rings, barriers, BLOCK: gl.constexpr, WIDTHS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """(mean, rest, total): the product of the last block, issued and not waited for; each row's sum of weights."""
    _k_full, _k_empty, v_full, _v_empty = barriers
    stage = (used - 1) % STAGES
    mbarrier.wait(v_full.index(stage), (used - 1) // STAGES & 1)
    mean, rest = _add_values(weights, rings, stage, mean, rest, BLOCK, WIDTHS)
    return mean, rest, gl.convert_layout(gl.sum(total, 1), row_layout(BLOCK))


@gluon.jit
def lse_of(top, total):
    """Each row's log of the sum of its exponentials."""
    return (top + gl.log2(total)) * LN_2


@gluon.jit
def wait_for_last(used, mean, rest, total, barriers, WIDTHS: gl.constexpr, STAGES: gl.constexpr):
    """(mean, rest, inverse): the sums of the values with all weights; the inverse of each row's sum of weights."""
    _k_full, _k_empty, _v_full, v_empty = barriers
    inverse = 1.0 / gl.where(total == 0, 1.0, total)
    if WIDTHS[3] > 0:
        mean, rest = warpgroup_mma_wait(0, [mean, rest])
    else:
        mean = warpgroup_mma_wait(0, [mean])
    mbarrier.arrive(v_empty.index((used - 1) % STAGES), count=1)
    return mean, rest, gl.convert_layout(inverse, gl.SliceLayout(1, mean.type.layout))
