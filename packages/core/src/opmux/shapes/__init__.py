"""Shapes: calls of ops as data, without their tensors. Recorded by `opmux.trace`, measured by `opmux.tune`."""

from opmux.shapes.files import read_shapes, write_shapes
from opmux.shapes.point import Point

__all__ = ["Point", "read_shapes", "write_shapes"]
