"""The vendors' libraries as an opmux backend, through the torch that is installed.

The package computes nothing itself: each target is one call of a library. What a library cannot do, its record refuses.
"""

from opmux_vendor.__about__ import __version__ as __version__
