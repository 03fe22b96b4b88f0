"""The requests: retrieve, store and prefetch, in bulk and layer by layer."""
