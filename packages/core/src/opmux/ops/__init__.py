"""The ops, one file per family. An op's definition is its signature, its docs and its reference."""
