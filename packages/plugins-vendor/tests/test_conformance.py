"""The conformance suite on the CPU, for every op that a library has there."""

from opmux.testing import conformance_suite

TestVendor = conformance_suite("vendor")
