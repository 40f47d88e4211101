"""Code objects: ELF files with kernels, their descriptors and metadata."""
