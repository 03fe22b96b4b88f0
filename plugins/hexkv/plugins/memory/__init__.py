"""Memory of this process: for the pool, and as a store of chunks."""
