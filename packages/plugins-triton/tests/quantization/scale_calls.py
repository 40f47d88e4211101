"""Calls that convert, pack and unpack scales, checked against the references bit by bit: interpreted and on a GPU."""

from typing import Any

import torch

import opmux

SHAPES = ((5, 3), (65, 33), (2, 130, 7), (2, 3, 4, 70), (1, 1), (0, 4), (3, 0))
DTYPES = (torch.float32, torch.float8_e8m0fnu)
ODD = (0.0, -0.0, 1e-45, 2.0**-127, 2.0**-126, 3e-39, 1.0, 3.0, 2.0**127, 3e38, -1.0, float("inf"), float("nan"))
"""Scales at the ends of both formats, and what is no scale."""


def scales(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random scales and odd ones among them."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator).exp2()
    flat = values.view(-1)
    flat[: len(ODD)] = torch.tensor(ODD)[: flat.numel()]
    if dtype == torch.float32:
        return values
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int32)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8).view(dtype)


def check(shape: tuple[int, ...], device: str) -> None:
    """Every pair of dtypes and every layout; contiguous, transposed, and a part of a larger tensor."""
    for dtype in DTYPES:
        for given in _forms(shape, dtype, device):
            for major in ("k", "m"):
                for to in DTYPES:
                    _same("convert_scale", given, dtype=to, scale_major=major)
                _same("pack_scale", given, scale_major=major)


def check_unpacking(shape: tuple[int, ...], device: str) -> None:
    """The same for integers of four scales, of which the last one of a row is used whole, or by three or one."""
    for given in _forms(shape, torch.int32, device):
        for blocks in {max(0, 4 * shape[-1] - less) for less in (0, 1, 3)}:
            for to in DTYPES:
                for major in ("k", "m"):
                    _same("unpack_scale", given, k_blocks=blocks, dtype=to, scale_major=major)


def _forms(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    whole = scales((*shape[:-1], shape[-1] + 3), dtype).to(device)
    forms = [whole[..., 2:-1], scales(shape, dtype).to(device)]
    forms += [scales((*shape[:-2], shape[-1], shape[-2]), dtype).to(device).mT]
    if len(shape) > 3:
        forms.append(scales((shape[1], shape[0], *shape[2:]), dtype).to(device).transpose(0, 1))
    return forms


def _same(op: str, given: torch.Tensor, **options: Any) -> None:
    found, wanted = (getattr(opmux, op)(given, **options, backend=b) for b in ("triton", "reference"))
    assert found.dtype == wanted.dtype
    assert _steps(found) == _steps(wanted)
    assert torch.equal(_bits(found), _bits(wanted)), (op, given.shape, given.stride(), given.dtype, options)
    if options["scale_major"] == "m" and found.numel():
        assert not bool(_padding(found).any())


def _bits(scale: torch.Tensor) -> torch.Tensor:
    """The bits, in which NaN is equal to itself, whatever its sign and payload."""
    if scale.dtype == torch.float32:
        scale = scale.nan_to_num(nan=-7.0)
    return scale.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _steps(scale: torch.Tensor) -> list[int]:
    """The strides that matter: those of dims that have several elements, where there are any."""
    return [step for size, step in zip(scale.shape, scale.stride(), strict=True) if size > 1 and scale.numel()]


def _padding(scale: torch.Tensor) -> torch.Tensor:
    """What lies in memory after the rows of each column, as bytes."""
    *batch, rows, columns = scale.shape
    padded = scale.stride(-1)
    memory = scale.as_strided((*batch, columns, padded), (*scale.stride()[:-2], padded, 1))
    return memory[..., rows:].clone(memory_format=torch.contiguous_format).view(torch.uint8)
