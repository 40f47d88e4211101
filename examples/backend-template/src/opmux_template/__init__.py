"""An opmux backend to start from."""
