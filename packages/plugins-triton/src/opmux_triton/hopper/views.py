"""Shared memory seen with another shape and layout."""

from triton.experimental.gluon.language._core import _unwrap_if_constexpr, builtin


@builtin
def view(buffer, dtype, shape, layout, _semantic=None):
    """The same bytes of shared memory with another shape and layout."""
    dtype, layout = _unwrap_if_constexpr(dtype), _unwrap_if_constexpr(layout)
    return _semantic.memdesc_reinterpret(buffer, dtype, [_unwrap_if_constexpr(n) for n in shape], layout)
