"""What is kept of a compilation."""

from opmux_triton.aot.build import dots_of


def test_dots_are_read_from_the_ir() -> None:
    line = "%9 = tt.dot %7, %8, %arg, inputPrecision = {} : tensor<{}x32x{}> * tensor<32x64x{}> -> tensor<{}x64xf32>"
    assert dots_of(line.format("tf32", 128, "bf16", "bf16", 128)) == {"tall"}
    assert dots_of(line.format("tf32", 16, "f16", "f16", 16)) == {"short"}
    assert dots_of(line.format("tf32", 64, "f32", "f32", 64)) == {"f32"}
    assert dots_of(line.format("ieee", 64, "f32", "f32", 64)) == {"f32_ieee"}
    assert dots_of("%1 = arith.addf %2, %3 : f32") == frozenset()
