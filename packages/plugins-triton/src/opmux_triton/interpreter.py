"""Whether kernels run under Triton's interpreter: on the CPU, as Python, slowly; for tests. Loads no Triton."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
"""Fixed when the process starts, as Triton reads the variable when a kernel is decorated."""
