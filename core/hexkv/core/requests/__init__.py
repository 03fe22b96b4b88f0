"""One request under way: retrieve, store, prefetch, layer by layer."""
