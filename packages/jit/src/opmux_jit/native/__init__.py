"""The native launcher: its source, how it is built, and how it is loaded."""
