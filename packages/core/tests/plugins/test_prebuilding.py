"""Which backends compile ahead."""

from backends import plugin

from opmux.plugin import Prebuilt, prebuilders, temporary_plugin


def test_the_functions_of_the_hook_are_found_by_backend() -> None:
    def build(arch, points, folder, workers, tick):
        return Prebuilt(1)

    with temporary_plugin(plugin(opmux_prebuilders=lambda: [build]), "ahead"):
        assert prebuilders()["ahead"] is build
    assert "ahead" not in prebuilders()
    assert Prebuilt(2) == Prebuilt(2, (), {})
