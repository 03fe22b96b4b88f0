"""KV made several times smaller, no element further off than declared: CacheGen and its rivals."""
