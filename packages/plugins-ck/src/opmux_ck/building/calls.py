"""Which instance a call launches."""

from collections.abc import Iterator
from typing import Any

from opmux.plugin import Call
from opmux_ck.attention.calls import attention_instances
from opmux_ck.building.instances import Instance
from opmux_ck.gemm.grouped_targets import grouped_product_of
from opmux_ck.gemm.targets import product_of, scaled_product_of
from opmux_ck.norms.instances import TEMPLATES
from opmux_ck.norms.targets import norm_of


def names_of(op: str, call: Call, config: Any) -> list[str]:
    """The names of the instances that a target launches for a call, as `opmux.explain` and the log show them."""
    return [instance.name for instance in instances_of(op, call, config)]


def instances_of(op: str, call: Call, config: Any) -> Iterator[Instance]:
    """The instances that a target launches for a call with a config, in their order."""
    if "attention" in op:
        yield from attention_instances(op, call, config)
    else:
        yield instance_of(op, call, config)


def instance_of(op: str, call: Call, config: Any) -> Instance:
    """The one instance that the target of a norm or a product launches for a call with a config."""
    tensors = call.tensors
    kernel = op.rstrip("_")
    if kernel in TEMPLATES:
        code, block = call.options.get("dtype"), call.options.get("block", (1, 0))
        return norm_of(kernel, tensors["x"].dtype, tensors["weight"].dtype, config, code, block[1])
    if op.endswith("grouped_linear"):
        x = tensors["x"]
        return grouped_product_of(x.dtype, x.shape[-1], config, call.options.get("out_dtype"))
    if op == "scaled_linear":
        return scaled_product_of(tensors["x"].dtype, call.options["out_dtype"], tensors["x"].shape[-1], config)
    return product_of(tensors["x"].dtype, tensors["bias"] is not None, tensors["w"].shape[1], config)
