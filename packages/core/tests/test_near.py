"""What a mistyped name probably meant; and that no advice names a package which anybody could publish."""

import re

import pytest
import torch
from backends import backends, implementation

import opmux
from opmux import near
from opmux.errors import UnknownBackend


@pytest.mark.parametrize(
    ("name", "registered", "remedy"),
    [
        ("triton", {"reference"}, "pip install opmux-triton, or see `opmux backends`"),
        ("triton:rows", {"reference"}, "pip install opmux-triton, or see `opmux backends`"),
        (
            "tritn",
            {"reference"},
            "did you mean triton, which needs pip install opmux-triton? see `opmux backends`",
        ),
        ("tritn", {"reference", "triton"}, "did you mean triton? see `opmux backends`"),
        ("triton:row", {"triton", "triton:rows"}, "did you mean triton:rows? see `opmux backends`"),
        ("tritn:whatever", {"triton"}, "did you mean triton? see `opmux backends`"),
        ("refrence", {"reference"}, "did you mean reference? see `opmux backends`"),
        ("ck", {"reference"}, "pip install opmux-ck, or see `opmux backends`"),
        (
            "deepgem",
            {"reference"},
            "did you mean deepgemm, which needs pip install opmux-deepgemm? see `opmux backends`",
        ),
        ("zzzz", {"reference"}, "see `opmux backends`"),
    ],
)
def test_the_remedy_for_an_unknown_backend(name, registered, remedy):
    assert near.backend_remedy(name, registered) == remedy


@pytest.mark.parametrize("name", ["tritn", "torch", "evil", "aiter", "deepgemm2", "vendr", "cutil", "as", "flash:x"])
def test_no_message_advises_to_install_a_package_that_is_not_ours(name):
    with pytest.raises(UnknownBackend) as caught:
        opmux.rms_norm(torch.ones(2, 8), torch.ones(8), backend=name)
    assert set(re.findall(r"pip install (\S+?)[?,;]", f"{caught.value};")) <= set(near.PACKAGES.values())


def test_a_mistyped_implementation_of_an_installed_backend():
    with (
        backends(mine=implementation(lambda x, weight, *, eps, weight_offset: x, name="rows")),
        pytest.raises(UnknownBackend) as caught,
    ):
        opmux.rms_norm(torch.ones(2, 8), torch.ones(8), backend="mine:row")
    assert str(caught.value) == (
        "rms_norm: `backend` expected one of mine, mine:rows, reference, got 'mine:row', which no installed plugin "
        "registers; did you mean mine:rows? see `opmux backends`"
    )


@pytest.mark.parametrize(
    ("name", "meant"), [("rmsnorm", "rms_norm"), ("explian", "explain"), ("polcy", "policy"), ("qwertyuiop", None)]
)
def test_a_mistyped_name_of_the_package(name, meant):
    with pytest.raises(AttributeError) as caught:
        getattr(opmux, name)
    guess = f"did you mean {meant}? " if meant else ""
    assert str(caught.value) == f"module 'opmux' has no attribute {name!r}; {guess}see `opmux ops` for the ops"


def test_nothing_is_suggested_where_nothing_is_near():
    assert near.did_you_mean("abc", ["xyz", "uvw"]) == ""
    assert near.did_you_mean("token", ["tokens", "hidden"]) == "did you mean tokens? "
