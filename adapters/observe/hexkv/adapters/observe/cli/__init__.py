"""``hexkv top``."""
