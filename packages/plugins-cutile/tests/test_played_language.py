"""What plays the kernels finds what the language leaves undefined; kernels here do it on purpose."""

import pytest
import torch
from played import language
from played.launches import play

from opmux_cutile import launching
from opmux_cutile.launching import TileKernel
from opmux_cutile.parameters import Array, Constant, Scalar

SOURCE = """
import cuda.tile as ct

@ct.kernel
def copies(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0) + FIRST,), (SIZE,), padding_mode=ct.PaddingMode.ZERO))

@ct.kernel
def pads(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (SIZE,)))

@ct.kernel
def shares(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.scatter(y, (ct.arange(SIZE, dtype=ct.int32),), 1.0)

@ct.kernel
def doubles(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.scatter(y, (ct.arange(SIZE, dtype=ct.int32) // 2,), ct.arange(SIZE, dtype=ct.int32).astype(y.dtype))

@ct.kernel
def follows(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.scatter(y, (ct.bid(0) + 1,), ct.gather(y, (ct.bid(0),)))

@ct.kernel
def trusts(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.scatter(y, (ct.bid(0),), ct.gather(x, (FIRST,), check_bounds=False))

@ct.kernel
def narrows(x, y, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (SIZE,)).astype(ct.bfloat16))

@ct.kernel
def numbers(x, y, number: int, FIRST: ct.Constant[int], SIZE: ct.Constant[int]):
    ct.scatter(y, (ct.bid(0),), number * 1.0)
"""
VECTOR = Array("float32", (None,), (1,), True)


def kernel(name: str, first: int = 0, size: int = 4, more: tuple = (), x: Array = VECTOR) -> TileKernel:
    return TileKernel("test", "kernels", name, (x, VECTOR, *more, Constant(first), Constant(size)))


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "text_of", lambda module: SOURCE)


def run(wanted: TileKernel, x: torch.Tensor, blocks: int = 2, numbers: tuple = ()) -> torch.Tensor:
    y = torch.full((8,), 9.0)
    play(wanted, (blocks, 1, 1), (x, *x.shape, *x.stride(), y, 8, 1, *numbers))
    return y


def test_a_tile_is_padded_and_cut_at_the_end() -> None:
    assert run(kernel("copies"), torch.arange(6.0)).tolist() == [0, 1, 2, 3, 4, 5, 0, 0]
    assert run(kernel("copies", size=8), torch.arange(6.0), blocks=1).tolist() == [0, 1, 2, 3, 4, 5, 0, 0]


def test_padding_that_is_left_open_is_not_a_number() -> None:
    assert run(kernel("pads"), torch.arange(6.0))[6:].isnan().all()


@pytest.mark.parametrize(
    ("wanted", "blocks", "reason"),
    [
        (kernel("copies", first=2), 1, "a tile begins at 8 of a dim of 8"),
        (kernel("copies", size=3), 1, r"a tile of \(3,\): every dim is a power of two"),
        (kernel("shares"), 2, "two blocks of the launch write one element"),
        (kernel("doubles"), 1, "one element is written twice, with different numbers"),
        (kernel("follows"), 2, "a block reads what another one of the launch writes"),
        (kernel("trusts", first=8), 1, "an index is out of bounds, which are not checked"),
        (kernel("narrows"), 1, "torch.bfloat16 is written to an array of torch.float32"),
        (kernel("copies", x=Array("float16", (None,), (1,), True)), 1, "reads an array that the launch does not give"),
        (kernel("copies", x=Array("float32", (7,), (1,), True)), 1, "a size of 8, compiled for 7"),
        (kernel("copies", x=Array("float32", (None,), (2,), True)), 1, "a stride of 1, compiled for 2"),
        (kernel("copies", x=Array("float32", (None,), (None,), True)), 1, "a stride of 1, compiled for multiples of 4"),
    ],
)
def test_what_is_undefined_is_found(wanted, blocks, reason) -> None:
    with pytest.raises(language.Misuse, match=reason):
        run(wanted, torch.arange(8.0), blocks)


def test_addresses_and_numbers_are_held_to_what_was_compiled() -> None:
    with pytest.raises(language.Misuse, match="an address that is no multiple of 16"):
        run(kernel("copies"), torch.arange(9.0)[1:])
    counted = kernel("numbers", more=(Scalar("int32"),))
    assert run(counted, torch.arange(8.0), 1, (5,))[0] == 5
    with pytest.raises(language.Misuse, match="2147483648 is no number of 32 bits"):
        run(counted, torch.arange(8.0), 1, (1 << 31,))
    with pytest.raises(language.Misuse, match="arguments that the kernel has no parameters for"):
        run(counted, torch.arange(8.0), 1, (5, 6))
    with pytest.raises(language.Misuse, match="a grid of"):
        run(counted, torch.arange(8.0), 0, (5,))


def test_subnormal_numbers_are_flushed_only_where_that_is_asked_for() -> None:
    small = torch.tensor([2.0**-127, 2.0**-100])
    assert language.truediv(1.0, small).tolist() == [2.0**127, 2.0**100]
    found = language.truediv(1.0, small, rounding_mode=language.RoundingMode.APPROX, flush_to_zero=True)
    assert found.tolist() == [float("inf"), 2.0**100]
    powers = torch.tensor([-130.0, -1.0])
    assert language.exp2(powers).tolist() == [2.0**-130, 0.5]
    assert language.exp2(powers, flush_to_zero=True).tolist() == [0.0, 0.5]


def test_slices_at_places_are_padded_outside_and_hold_one_tile() -> None:
    x = language.Array(torch.arange(12.0).view(3, 4), torch.full((3, 4), language.NOBODY))
    rows, zero = language.arange(2, dtype=torch.int32) + 2, language.PaddingMode.ZERO
    found = language.load_advanced_indexing(x, (rows, language.Slice(2, 4)), padding_mode=zero)
    assert found.tolist() == [[10, 11, 0, 0], [0, 0, 0, 0]]
    with pytest.raises(language.Misuse, match="2 indices into an array of 2 dims, of which one is a tile"):
        language.load_advanced_indexing(x, (rows, rows))
    with pytest.raises(language.Misuse, match="a tile that lies outside its array"):
        language.load_advanced_indexing(x, (rows + 1, language.Slice(0, 4)), padding_mode=zero)


def test_bits_have_another_dtype_of_their_size() -> None:
    assert language.bitcast(torch.tensor([1.0]), torch.int32).tolist() == [127 << 23]
    with pytest.raises(language.Misuse, match=r"bits of .*float32 as .*int8"):
        language.bitcast(torch.tensor([1.0]), torch.int8)


def test_several_numbers_are_reduced_at_once() -> None:
    x = torch.arange(8.0).view(2, 4)
    sums, products = language.reduce((x, x * x), 1, lambda a, b, c, d: (a + c, b + d), (0.0, 0.0), keepdims=True)
    assert (sums.tolist(), products.tolist()) == ([[6], [22]], [[14], [126]])
    assert language.reduce(x, 0, lambda a, b: a + b, 0.0).tolist() == [4, 6, 8, 10]
