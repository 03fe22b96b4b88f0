"""The cache by key that nodes and servers serve, and its hand-over to another process."""
