"""The interpreter in C++, and how it is built and loaded."""
