"""The calls of one engine beside the bare work that they stand for."""
