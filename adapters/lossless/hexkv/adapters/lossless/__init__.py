"""KV made smaller without losing a bit: zstd over the byte planes of its elements."""
