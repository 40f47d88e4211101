"""The conformance suite on the CPU, for every op that a library has there."""

from pathlib import Path

from opmux.testing import conformance_suite

TestVendor = conformance_suite("vendor", exceptions=Path(__file__).with_name("exceptions.txt"))
