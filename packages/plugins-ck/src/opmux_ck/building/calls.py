"""Which instance a call launches."""

from typing import Any

from opmux.plugin import Call
from opmux_ck.attention.targets import attention_instance, limits
from opmux_ck.building.instances import Instance
from opmux_ck.dtypes import SHORT
from opmux_ck.gemm.grouped_targets import grouped_product_of
from opmux_ck.gemm.targets import product_of, scaled_product_of
from opmux_ck.norms.instances import TEMPLATES, Norm


def instance_of(op: str, call: Call, config: Any) -> Instance:
    """The instance that a target launches for a call with a config."""
    tensors = call.tensors
    kernel = op.rstrip("_")
    if kernel in TEMPLATES:
        return Norm(kernel, SHORT[tensors["x"].dtype], SHORT[tensors["weight"].dtype], config)
    if op.startswith("attention"):
        q, v, seen = tensors["q"], tensors["v"], limits(call.options["causal"], call.options["window"])
        flags = {"ragged": "_varlen" in op, "lse": op.endswith("_lse")}
        return attention_instance(q.dtype, q.shape[-1], v.shape[-1], seen, config, **flags)
    if op.endswith("grouped_linear"):
        return grouped_product_of(tensors["x"].dtype, tensors["x"].shape[-1], config)
    if op == "scaled_linear":
        return scaled_product_of(tensors["x"].dtype, call.options["out_dtype"], tensors["x"].shape[-1], config)
    return product_of(tensors["x"].dtype, tensors["bias"] is not None, tensors["w"].shape[1], config)
