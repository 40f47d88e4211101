"""Ops of plugins under ``torch.ops.opmux``, in processes that have only imported opmux."""

import pytest

DOUBLING = """
    from torch import Tensor
    from opmux.dtypes import Real
    from opmux.plugin import define_op, hookimpl

    OPMUX_API_VERSION = 1

    @define_op
    def planted_double(x: Real[Tensor, "*tokens n"]) -> Real[Tensor, "*tokens n"]:
        \"\"\"Multiply by two.\"\"\"
        return x * 2

    @hookimpl
    def opmux_ops():
        return [planted_double]
"""

SAVE = """
    import torch, opmux

    class Doubling(torch.nn.Module):
        def forward(self, x):
            return opmux.planted_double(x)

    torch.export.save(torch.export.export(Doubling(), (torch.randn(3, 4),)), {file!r})
"""

LOAD = """
    import torch, opmux
    print(torch.export.load({file!r}).module()(torch.ones(3, 4)).sum().item())
"""


@pytest.fixture
def file(tmp_path, install):
    install("doubling", DOUBLING)
    return str(tmp_path / "program.pt2")


@pytest.mark.long
def test_an_exported_program_with_a_plugin_s_op_loads_after_import_opmux(run, file):
    saved = run(SAVE.format(file=file))
    assert saved.returncode == 0, saved.stderr
    assert run(LOAD.format(file=file)).stdout.strip() == "24.0"


@pytest.mark.usefixtures("file")
def test_the_namespace_of_torch_knows_ops_of_plugins(run):
    done = run("import torch, opmux; print(torch.ops.opmux.planted_double(torch.ones(2)).tolist())")
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


@pytest.mark.usefixtures("file")
def test_what_it_does_not_know_is_an_attribute_error_as_ever(run):
    program = """
        import torch, opmux
        from opmux.plugins import loading
        assert not hasattr(torch.ops.opmux, "_nothing") and not loading._Progress.done
        torch.ops.opmux.rms_norm
        assert not loading._Progress.done, "an op of the core loads nothing"
        for _ in range(2):
            try:
                torch.ops.opmux.nothing
            except AttributeError as error:
                print(error)
    """
    told = "'_OpNamespace' 'opmux' object has no attribute 'nothing'"
    assert run(program).stdout.splitlines() == [told, told]
