"""Further calls of the caches: layer by layer, from hosts that name chunks, to another process."""
