"""The function that multiplies 64 rows on the matrix unit, written for one width and one kind of operands.

Source: PTX ISA, "wgmma.mma_async".
"""

KINDS = {"bfloat16": ("k16", "bf16"), "float8_e4m3fn": ("k32", "e4m3")}
"""By dtype of the operands, the depth and the type in the instruction's name; 32 bytes of k either way."""


def multiply(dtype: str, columns: int, a_across: bool = False, b_across: bool = False) -> str:
    """The text of ``multiply(d, a, b, accumulate)``: ``d = a b^T``, or ``d += a b^T``, done in the background.

    Args:
        dtype: of both operands.
        columns: of the result, a multiple of 8 up to 256.
        a_across: whether a, of 16 bits, lies across the dim that is summed.
        b_across: whether b does.
    """
    depth, kind = KINDS[dtype]
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    # Only 16-bit operands may be transposed as they are read.
    transposed = f", {int(a_across)}, {int(b_across)}" if dtype == "bfloat16" else ""
    return f"""
DEVICE void multiply(float (&d)[{count}], u64 a, u64 b, bool accumulate) {{
  asm volatile(
      "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}{depth}.f32.{kind}.{kind} "
      "{{{registers}}}, %{count}, %{count + 1}, p, 1, 1{transposed};\\n}}"
      : {outputs}
      : "l"(a), "l"(b), "r"((int)accumulate)
      : "memory");
}}
"""
