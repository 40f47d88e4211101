"""Linear layers: tiles, persistent tiles with TMA, split-k for few rows, and the gradient."""
