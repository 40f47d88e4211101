"""The records of attention's backward."""

from opmux_triton.archs import HALVES
from opmux_triton.attention.records import hopper, portable
from opmux_triton.scoring.constraints import HOPPER_PADDED_HEADS, HOPPER_WIDER_HEADS

_TENSORS = ("grad_out", "q", "k", "v", "out")

RECORDS = (
    *(
        portable(op, name, dtypes, folder="backward", config=config, tensors=_TENSORS)
        for op in ("attention_backward", "attention_varlen_backward")
        for name, dtypes, config in (("", HALVES, "backward_config"), ("float32", ("float32",), "float32_config"))
    ),
    # Not deterministic: the gradients of queries are summed in the order in which programs reach them.
    hopper(
        "attention_backward",
        folder="backward",
        heads=HOPPER_PADDED_HEADS,
        tensors=_TENSORS,
        aligned=("grad_out", "q", "k", "v"),
        deterministic=False,
    ),
    hopper(
        "attention_backward",
        name="hopper_wide",
        folder="backward",
        heads=HOPPER_WIDER_HEADS,
        tensors=_TENSORS,
        aligned=("grad_out", "q", "k", "v"),
        deterministic=True,
        config_class="WideConfig",
    ),
)
