"""The cache by key: tiers, their indexes, reading, writing and moving chunks."""
