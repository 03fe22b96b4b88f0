"""Chunks that move between nodes: the plan, and the size of a directory."""
