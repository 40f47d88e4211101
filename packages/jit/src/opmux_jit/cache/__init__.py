"""The cache of machine code: verified entries in the user's folder, read-only bundles below it."""
