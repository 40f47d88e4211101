"""Names that an op cannot have."""

import pkgutil

import pytest
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.dtypes import Real
from opmux.plugin import define_op

OF_OPMUX = ["trace", "policy", "explain", "nn", "bench", "planning", "block_table_from_csr", "plugin"]


def definition(name: str):
    def reference(x: Real[Tensor, "*tokens n"]) -> Real[Tensor, "*tokens n"]:
        return x.clone()

    reference.__name__ = name
    return reference


@pytest.mark.parametrize("name", OF_OPMUX)
def test_what_opmux_has_already(name):
    with pytest.raises(TypeError) as refused:
        define_op(definition(name))
    assert str(refused.value) == f"{name}: `opmux.{name}` is part of opmux itself; give the op a name of its own"
    assert name not in OPS


def test_every_module_and_public_name_is_taken():
    modules = [module.name for module in pkgutil.iter_modules(opmux.__path__) if not module.name.startswith("_")]
    for name in {*modules, *opmux.__all__} - {"__version__", *OPS}:
        with pytest.raises(TypeError, match=f"`opmux.{name}` is part of opmux itself"):
            define_op(definition(name))


def test_an_op_of_the_core():
    with pytest.raises(TypeError, match=r"^rms_norm: an op of that name is defined already, by opmux\.ops\.norm$"):
        define_op(definition("rms_norm"))


def test_an_attribute_of_the_namespace_of_torch_ops():
    with pytest.raises(TypeError) as refused:
        define_op(definition("name"))
    assert str(refused.value) == (
        "name: `torch.ops.opmux.name` is an attribute of torch's own; give the op another name"
    )


@pytest.mark.parametrize("name", ["<lambda>", "_hidden", "lambda"])
def test_what_is_no_public_identifier(name):
    with pytest.raises(TypeError) as refused:
        define_op(definition(name))
    assert str(refused.value) == (
        f"{name}: an op's name is a public Python identifier; define it by `def` under such a name"
    )
