"""The whole conformance suite, on what the backend claims."""

from opmux.testing import conformance_suite

TestTemplate = conformance_suite("template")
