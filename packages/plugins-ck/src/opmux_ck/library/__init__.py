"""Composable Kernel itself: where it is, which version, what it lacks."""
