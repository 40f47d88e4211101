"""Tensor maps of operands, results and scales, by which the copy engine reads and writes them as they lie."""

from dataclasses import replace

from torch import Tensor

from opmux_deepgemm.configs import COPIED_BLOCKS, Config
from opmux_deepgemm.generation.source import Layout, Product, Scales
from opmux_jit import tensor_map
from opmux_jit.launching import Promotion, Swizzle

SWIZZLES = {32: Swizzle.BYTES_32, 64: Swizzle.BYTES_64, 128: Swizzle.BYTES_128}


def matrix(tensor: Tensor, columns: int) -> Tensor:
    """A tensor's rows as a matrix that the copy engine reads; copied where its rows overlap or have several strides."""
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, columns)
    if len(rows) == 1:  # one row may have any stride
        return rows.as_strided((1, columns), (columns, 1))
    return rows if rows.stride(0) >= columns else rows.contiguous()


def lies_across(tensor: Tensor) -> bool:
    """Whether a matrix lies across k, or that of each group: rows are next to each other, the columns far apart."""
    return tensor.dim() in (2, 3) and tensor.stride(-1) != 1 and tensor.size(-1) > 1 and tensor.stride(-2) == 1


def across_map(tensor: Tensor) -> bytes:
    """The tensor map of a matrix that lies across k, or of each group's, by which boxes of 64 x 64 are copied."""
    if tensor.dim() == 2:
        return map_of(tensor.mT, len(tensor), 64, 64)
    turned = tensor.mT if len(tensor) > 1 else tensor[0].mT[None]  # a lone group may have any stride
    return tensor_map(turned, (1, 64, 64), swizzle=Swizzle.BYTES_128, promotion=Promotion.BYTES_256)


def with_scales(product: Product, config: Config, x_scale: Tensor | None, w_scale: Tensor | None) -> Product:
    """What is compiled for scales that lie so: the copy engine brings those of x where it can and the config says so.

    Args:
        product: without scales.
        config: of the kernel.
        x_scale: as in `Operands`; rows of several batches may also have a dim for each.
        w_scale: likewise.
    """
    if not config.copied_scales or x_scale is None or w_scale is None:
        return product
    rows = _rows_of_scales(x_scale, product.groups)
    lie: Scales = "rows" if _is_copied(rows) else "columns" if _is_copied(rows.mT) else ""
    if not lie:
        return product
    if product.accumulate:
        blocks = w_scale.shape[-1]
        if blocks % COPIED_BLOCKS and blocks <= config.stages:  # a slot would be filled again too early
            return product
        of_w: Scales = "rows" if _is_copied(w_scale) else "columns" if _is_copied(w_scale.mT) else ""
        return replace(product, x_scales=lie, w_scales=of_w) if of_w else product
    together = w_scale.shape[-1] % COPIED_BLOCKS == 0 and _is_copied(w_scale)
    return replace(product, x_scales=lie, w_together=together)


def _rows_of_scales(scales: Tensor, groups: Layout) -> Tensor:
    """The scales of x as a matrix, or as one for each group where these are masked."""
    return scales if scales.dim() == 2 or groups == "masked" else scales.reshape(-1, scales.shape[-1])


def _is_copied(scales: Tensor) -> bool:
    """Whether the rows of a matrix of scales, or of several, can be copied four columns at a time."""
    *strides, column = scales.stride()
    aligned = scales.data_ptr() % 16 == 0 and all(stride > 0 and stride % COPIED_BLOCKS == 0 for stride in strides)
    return aligned and column == 1 and strides[-1] >= scales.shape[-1]


def scales_map(scales: Tensor, product: Product, config: Config) -> bytes:
    """The tensor map of the scales of x, by which boxes of four blocks of k of a tile's rows are copied."""
    rows = _rows_of_scales(scales, product.groups)
    matrices = [1] * (rows.dim() - 2)
    if product.x_scales == "rows":
        return tensor_map(rows, (*matrices, config.block_m, COPIED_BLOCKS))
    box_rows = config.block_m
    if product.groups == "ragged":  # groups begin anywhere, copies at multiples of four rows; a box has 256 at most
        box_rows = (box_rows if box_rows < 256 else box_rows // 2) + COPIED_BLOCKS
    return tensor_map(rows.mT, (*matrices, COPIED_BLOCKS, box_rows))


def row_scales_map(scales: Tensor, lie: Scales, block: int) -> bytes:
    """The tensor map of scales of rows, by which boxes of four blocks of k of so many rows are copied."""
    return (
        tensor_map(scales, (block, COPIED_BLOCKS)) if lie == "rows" else tensor_map(scales.mT, (COPIED_BLOCKS, block))
    )


def map_of(tensor: Tensor, columns: int, box_rows: int, box_columns: int, width: int = 128) -> bytes:
    """The tensor map of a tensor's rows, by which boxes of so many rows and columns are copied in a swizzle."""
    rows = matrix(tensor, columns)
    return tensor_map(rows, (box_rows, box_columns), swizzle=SWIZZLES[width], promotion=Promotion.BYTES_256)
