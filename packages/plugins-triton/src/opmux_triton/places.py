"""Where the tensors of a call's launches are found at a later call like it."""

from collections.abc import Sequence

from torch import Tensor


class Places:
    """The tensors of a call, and its scratch memory, which is one tensor after the others at a later call.

    Args:
        tensors: the call's tensors, given and made.
        scratch: its parts of scratch memory.
        begins: where each part begins in the whole, in bytes.
    """

    def __init__(self, tensors: Sequence[Tensor], scratch: Sequence[Tensor], begins: Sequence[int]) -> None:
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        self._scratch = len(tensors)
        self._parts = [(p.data_ptr(), p.numel() * p.element_size(), b) for p, b in zip(scratch, begins, strict=True)]

    def of(self, tensor: Tensor) -> tuple[int, int] | None:
        """The number of a tensor, and bytes from its beginning; None if it is none of these.

        A view of scratch memory is found by its address. A view of another tensor is not found: whether that tensor's
        own address changes is not known here.
        """
        number = self._numbers.get(id(tensor))
        if number is not None:
            return number, 0
        address = tensor.data_ptr()
        for begin, size, place in self._parts:
            if begin <= address < begin + size:
                return self._scratch, place + address - begin
        return None


def from_offset(tensor: Tensor, offset: int) -> Tensor:
    """What begins this many bytes into a tensor of one dim."""
    return tensor[offset // tensor.element_size() :] if offset else tensor
