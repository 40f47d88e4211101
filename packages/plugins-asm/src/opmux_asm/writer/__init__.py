"""A small writer of AMD assembly: named registers, loops, wait counts that are checked, wait states, LDS layouts.

It imports nothing but the standard library, since the build of the wheel runs it.
"""

from opmux_asm.writer.errors import WriterError
from opmux_asm.writer.kernel import Argument, Kernel
from opmux_asm.writer.registers import EXEC, M0, OFF, SCC, VCC, Register
from opmux_asm.writer.text import module

__all__ = ["EXEC", "M0", "OFF", "SCC", "VCC", "Argument", "Kernel", "Register", "WriterError", "module"]
