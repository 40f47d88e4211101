"""Before the first call: bundles are built on any machine, and a process is brought to steady state."""
